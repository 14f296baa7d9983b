"""RepPoints V2, ResNet-50, 3x in the settings of Swin: published 46.5 box AP on COCO val (counted: 42.1 M, 272.2 G at
800x1280). The Swin authors released no config of it."""

_base_ = ["reppoints_v2_swin_t_coco.py", "_base_/resnet50.py"]

model = dict(
    backbone=dict(_base_.resnet50, out_indices=(1, 2, 3)),
    neck=dict(in_channels=[512, 1024, 2048]),
)
