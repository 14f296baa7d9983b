"""UPerNet, NAT-T, 160k iterations: published 47.1 mIoU, 48.4 with flips and six scales, on ADE20K val (58 M, 934 G at
512x2048).

torchrun --nproc-per-node 8 -m vitdense train upernet_nat_t_ade20k --launcher pytorch
"""

_base_ = ["../_base_/upernet.py", "../_base_/ade20k.py", "../_base_/schedule_160k.py", "../_base_/seg_runtime.py"]

model = dict(
    backbone=dict(
        _delete_=True,
        type="vitdense.NAT",
        arch="tiny",
        drop_path_rate=0.3,
        init_cfg=dict(type="Pretrained", checkpoint="nat_tiny.shi_in1k"),
    ),
    decode_head=dict(in_channels=[64, 128, 256, 512]),
    auxiliary_head=dict(in_channels=256),
)
