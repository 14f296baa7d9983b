"""Cascade Mask R-CNN, Swin-T, 3x: published 50.4 box AP, 43.7 mask AP on COCO val (85.6 M, 744.8 G at 800x1280).

torchrun --nproc-per-node 8 -m vitdense train cascade_swin_t_coco --launcher pytorch
"""

_base_ = ["_base_/cascade_mask_rcnn.py", "_base_/coco_instance.py", "_base_/schedule_3x.py", "_base_/det_runtime.py"]

model = dict(
    backbone=dict(
        init_cfg=dict(type="Pretrained", checkpoint="swin_tiny.official_in1k"),
    )
)
