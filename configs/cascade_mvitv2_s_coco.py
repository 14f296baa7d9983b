"""Cascade Mask R-CNN, MViTv2-S, 36 epochs: published 53.2 box AP, 46.0 mask AP on COCO val (86.54 M, 746.5 G at
800x1280)."""

_base_ = "cascade_mvitv2_t_coco.py"

model = dict(backbone=dict(arch="v2_small", init_cfg=dict(checkpoint="mvitv2_small.fb_in1k")))
