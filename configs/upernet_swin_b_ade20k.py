"""UPerNet, Swin-B, 160k iterations: published 48.13 mIoU, 49.72 with flips and six scales, on ADE20K val (121.28 M,
1187.4 G at 512x2048)."""

_base_ = "upernet_swin_t_ade20k.py"

model = dict(
    backbone=dict(
        arch="base",
        init_cfg=dict(checkpoint="swin_base.official_in1k"),
    ),
    decode_head=dict(in_channels=[128, 256, 512, 1024]),
    auxiliary_head=dict(in_channels=512),
)
