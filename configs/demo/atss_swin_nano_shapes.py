"""ATSS, small in every part, on a nano Swin and the boxes of the embedded data set.

vitdense train atss_swin_nano_shapes
"""

_base_ = ["../_base_/atss.py", "../_base_/swin_nano.py", "../_base_/shapes_boxes.py", "../_base_/det_nano.py"]

num_classes = 8
width = 64  # channels of FPN and head
model = dict(
    backbone=dict(_delete_=True, **_base_.swin_nano, out_indices=(1, 2, 3)),
    neck=dict(
        in_channels=[64, 128, 256],
        out_channels=width,
        num_outs=4,
        norm_cfg=dict(type="SyncBN", requires_grad=True),
    ),
    bbox_head=dict(
        num_classes=num_classes,
        in_channels=width,
        feat_channels=width,
        stacked_convs=2,
        anchor_generator=dict(octave_base_scale=4, strides=[8, 16, 32, 64]),  # anchors of 32 to 256 pixels
    ),
)
train_cfg = dict(max_iters=1800, val_interval=1800)
param_scheduler = [_base_.param_scheduler[0], dict(_base_.param_scheduler[1], end=1800)]
