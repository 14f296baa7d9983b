"""RepPoints V2, small in every part, on a nano Swin and the boxes of the embedded data set.

vitdense train reppoints_v2_swin_nano_shapes
"""

_base_ = ["_base_/reppoints_v2.py", "../_base_/swin_nano.py", "../_base_/shapes_boxes.py", "../_base_/det_nano.py"]

num_classes = 8
width = 64  # channels of BiFPN and head: two in each group of GroupNorm
model = dict(
    backbone=dict(_delete_=True, **_base_.swin_nano, out_indices=(1, 2, 3)),
    neck=dict(in_channels=[64, 128, 256], out_channels=width, num_repeat=1),
    bbox_head=dict(
        num_classes=num_classes,
        in_channels=width,
        feat_channels=width,
        point_feat_channels=width,
        corner_dim=32,
        stacked_convs=1,
    ),
    test_cfg=dict(nms_pre=200),
)
train_cfg = dict(max_iters=1000, val_interval=1000)
param_scheduler = [_base_.param_scheduler[0], dict(_base_.param_scheduler[1], end=1000)]
