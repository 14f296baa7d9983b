"""UPerNet, ConvNeXt-T, 160k iterations: published 46.11 mIoU, 46.62 with flips and six scales, on ADE20K val (60 M,
939 G at 512x2048), by a learning rate of 1e-4 with layer-wise decay of 0.9 in six groups. Here the schedule is Swin's.

torchrun --nproc-per-node 8 -m vitdense train upernet_convnext_t_ade20k --launcher pytorch
"""

_base_ = ["_base_/upernet.py", "_base_/ade20k.py", "_base_/schedule_160k.py", "_base_/seg_runtime.py"]

model = dict(
    backbone=dict(
        _delete_=True,
        type="vitdense.ConvNeXt",
        arch="tiny",
        drop_path_rate=0.4,
        init_cfg=dict(type="Pretrained", checkpoint="convnext_tiny.fb_in1k"),
    ),
    decode_head=dict(in_channels=[96, 192, 384, 768]),
    auxiliary_head=dict(in_channels=384),
)
