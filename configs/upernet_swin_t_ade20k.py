"""UPerNet, Swin-T, 160k iterations: published 44.51 mIoU, 45.81 with flips and six scales, on ADE20K val (59.94 M,
944.4 G at 512x2048).

torchrun --nproc-per-node 8 -m vitdense train upernet_swin_t_ade20k --launcher pytorch
"""

_base_ = ["_base_/upernet.py", "_base_/ade20k.py", "_base_/schedule_160k.py", "_base_/seg_runtime.py"]

model = dict(
    backbone=dict(
        init_cfg=dict(type="Pretrained", checkpoint="swin_tiny.official_in1k"),
    )
)
