"""RF-DETR Seg XL, COCO instances at 624 pixels, 100 epochs: published 48.8 mask AP after pretraining on Objects365.

torchrun --nproc-per-node 4 -m vitdense train rfdetr_seg_xl_coco --launcher pytorch --amp
"""

_base_ = "_base_/rfdetr_seg_coco.py"

settings = dict(image_size=624)
queries = 300
model = dict(
    backbone=dict(pretrain_img_size=624),
    bbox_head=dict(num_layers=6, num_queries=queries),
    test_cfg=dict(max_per_img=queries),
)
