"""RF-DETR Seg M, COCO instances at 432 pixels, 100 epochs: published 45.3 mask AP after pretraining on Objects365.

torchrun --nproc-per-node 4 -m vitdense train rfdetr_seg_m_coco --launcher pytorch --amp
"""

_base_ = "_base_/rfdetr_seg_coco.py"

settings = dict(image_size=432)
queries = 200
model = dict(
    backbone=dict(pretrain_img_size=432),
    bbox_head=dict(num_layers=5, num_queries=queries),
    test_cfg=dict(max_per_img=queries),
)
