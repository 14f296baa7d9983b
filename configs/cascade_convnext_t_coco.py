"""Cascade Mask R-CNN, ConvNeXt-T, 3x: published 50.3 box AP, 43.6 mask AP on COCO val (86 M, 741 G at 800x1280), by a
learning rate of 2e-4 with layer-wise decay of 0.7 in six groups. Here the schedule is Swin's.

torchrun --nproc-per-node 8 -m vitdense train cascade_convnext_t_coco --launcher pytorch
"""

_base_ = ["_base_/cascade_mask_rcnn.py", "_base_/coco_instance.py", "_base_/schedule_3x.py", "_base_/det_runtime.py"]

model = dict(
    backbone=dict(
        _delete_=True,
        type="vitdense.ConvNeXt",
        arch="tiny",
        drop_path_rate=0.4,
        init_cfg=dict(type="Pretrained", checkpoint="convnext_tiny.fb_in1k"),
    ),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
