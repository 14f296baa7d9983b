"""RF-DETR Seg S, COCO instances at 384 pixels, 100 epochs: published 43.1 mask AP after pretraining on Objects365.

torchrun --nproc-per-node 4 -m vitdense train rfdetr_seg_s_coco --launcher pytorch --amp
"""

_base_ = "_base_/rfdetr_seg_coco.py"

settings = dict(image_size=384)
model = dict(
    backbone=dict(pretrain_img_size=384),
)
