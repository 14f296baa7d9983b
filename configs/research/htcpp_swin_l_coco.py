"""HTC++, Swin-L, 3x: published 57.1 box AP, 49.5 mask AP on COCO val, 58.0 and 50.4 with the authors' multi-scale
test (counted: 283.8 M, 1469.3 G at 800x1280)."""

_base_ = "htcpp_swin_b_coco.py"

channels = [192, 384, 768, 1536]
model = dict(
    backbone=dict(
        arch="large",
        init_cfg=dict(checkpoint="swin_large.ms_in22k"),
    ),
    neck=[
        dict(_base_.model.neck[0], in_channels=channels, num_heads=48),
        dict(_base_.model.neck[1], in_channels=channels),
    ],
)
train_cfg = dict(max_epochs=36)
param_scheduler = [_base_.param_scheduler[0], dict(_base_.param_scheduler[1], end=36, milestones=[27, 33])]
