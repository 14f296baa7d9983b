"""ATSS, ResNet-50, 3x in the settings of Swin: published 43.5 box AP on COCO val (counted: 32.3 M, 204.5 G at
800x1280)."""

_base_ = ["../atss_swin_t_coco.py", "_base_/resnet50.py"]

model = dict(
    backbone=dict(_base_.resnet50, out_indices=(1, 2, 3)),
    neck=dict(in_channels=[512, 1024, 2048]),
)
