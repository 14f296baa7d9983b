"""Cascade Mask R-CNN, NAT-T, 3x: published 51.4 box AP, 44.5 mask AP on COCO val (85 M, 737 G at 800x1280).

torchrun --nproc-per-node 8 -m vitdense train cascade_nat_t_coco --launcher pytorch
"""

_base_ = [
    "../_base_/cascade_mask_rcnn.py",
    "../_base_/coco_instance.py",
    "../_base_/schedule_3x.py",
    "../_base_/det_runtime.py",
]

model = dict(
    backbone=dict(
        _delete_=True,
        type="vitdense.NAT",
        arch="tiny",
        drop_path_rate=0.3,
        init_cfg=dict(type="Pretrained", checkpoint="nat_tiny.shi_in1k"),
    ),
    neck=dict(in_channels=[64, 128, 256, 512]),
)
