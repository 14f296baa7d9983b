"""Cascade Mask R-CNN, Swin-B, 3x: published 51.9 box AP, 45.0 mask AP on COCO val (145.0 M, 981.3 G at 800x1280)."""

_base_ = "cascade_swin_t_coco.py"

model = dict(
    backbone=dict(
        arch="base",
        drop_path_rate=0.3,
        init_cfg=dict(checkpoint="swin_base.official_in1k"),
    ),
    neck=dict(in_channels=[128, 256, 512, 1024]),
)
