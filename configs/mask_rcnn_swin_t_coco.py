"""Mask R-CNN, Swin-T, 3x: published 46.0 box AP, 41.6 mask AP on COCO val (47.8 M, 266.5 G at 800x1280).

torchrun --nproc-per-node 8 -m vitdense train mask_rcnn_swin_t_coco --launcher pytorch
"""

_base_ = ["_base_/mask_rcnn.py", "_base_/coco_instance.py", "_base_/schedule_3x.py", "_base_/det_runtime.py"]

model = dict(
    backbone=dict(
        init_cfg=dict(type="Pretrained", checkpoint="swin_tiny.official_in1k"),
    )
)
