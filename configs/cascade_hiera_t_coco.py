"""Cascade Mask R-CNN, Hiera-T of SAM 2.1, 3x: no result is published (85.0 M, 786.6 G at 800x1280).

torchrun --nproc-per-node 8 -m vitdense train cascade_hiera_t_coco --launcher pytorch
"""

_base_ = ["_base_/cascade_mask_rcnn.py", "_base_/coco_instance.py", "_base_/schedule_3x.py", "_base_/det_runtime.py"]

model = dict(
    backbone=dict(
        _delete_=True,
        type="vitdense.Hiera",
        arch="tiny",
        drop_path_rate=0.1,
        init_cfg=dict(type="Pretrained", checkpoint="sam2_hiera_tiny.fb_r896_2pt1"),
    ),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
