"""Sparse R-CNN, 300 proposals, ResNet-50, 3x in the settings of Swin: published 44.5 box AP on COCO val (counted:
106.3 M, 168.3 G at 800x1280)."""

_base_ = ["../sparse_rcnn_swin_t_coco.py", "_base_/resnet50.py"]

model = dict(
    backbone=_base_.resnet50,
    neck=dict(in_channels=[256, 512, 1024, 2048]),
)
