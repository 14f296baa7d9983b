"""ATSS, Swin-T, 3x: published 47.2 box AP on COCO val (counted: 35.7 M, 214.4 G at 800x1280).

torchrun --nproc-per-node 8 -m vitdense train atss_swin_t_coco --launcher pytorch
"""

_base_ = ["_base_/atss.py", "_base_/coco_boxes.py", "_base_/schedule_3x.py", "_base_/det_runtime.py"]

model = dict(
    backbone=dict(
        init_cfg=dict(type="Pretrained", checkpoint="swin_tiny.official_in1k"),
    )
)
