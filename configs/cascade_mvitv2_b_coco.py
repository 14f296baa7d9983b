"""Cascade Mask R-CNN, MViTv2-B, 36 epochs: published 54.1 box AP, 46.7 mask AP on COCO val (103.15 M, 811.9 G at
800x1280)."""

_base_ = "cascade_mvitv2_t_coco.py"

model = dict(
    backbone=dict(
        arch="v2_base",
        drop_path_rate=0.4,
        init_cfg=dict(checkpoint="mvitv2_base.fb_in1k"),
    )
)
