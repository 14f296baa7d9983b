"""LW-DETR tiny, COCO boxes at 640 pixels, 60 epochs: published 42.6 box AP after pretraining on Objects365.

torchrun --nproc-per-node 8 -m vitdense train lwdetr_t_coco --launcher pytorch --amp
"""

_base_ = "_base_/lwdetr_coco.py"

queries = 100
model = dict(
    backbone=dict(arch="lwdetr_tiny", global_indices=(1, 3, 5)),
    neck=dict(in_channels=[192] * 3),
    bbox_head=dict(num_queries=queries),
    test_cfg=dict(max_per_img=queries),
)
