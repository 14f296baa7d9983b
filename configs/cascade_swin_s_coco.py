"""Cascade Mask R-CNN, Swin-S, 3x: published 51.9 box AP, 45.0 mask AP on COCO val (107.0 M, 836.8 G at 800x1280)."""

_base_ = "cascade_swin_t_coco.py"

model = dict(
    backbone=dict(
        arch="small",
        init_cfg=dict(checkpoint="swin_small.official_in1k"),
    )
)
