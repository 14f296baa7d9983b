"""RF-DETR Seg L, COCO instances at 504 pixels, 100 epochs: published 47.1 mask AP after pretraining on Objects365.

torchrun --nproc-per-node 4 -m vitdense train rfdetr_seg_l_coco --launcher pytorch --amp
"""

_base_ = "_base_/rfdetr_seg_coco.py"

settings = dict(image_size=504)
queries = 200
model = dict(
    backbone=dict(pretrain_img_size=504),
    bbox_head=dict(num_layers=5, num_queries=queries),
    test_cfg=dict(max_per_img=queries),
)
