"""RF-DETR N, COCO boxes at 384 pixels, 100 epochs: published 48.4 box AP after pretraining on Objects365.

torchrun --nproc-per-node 4 -m vitdense train rfdetr_n_coco --launcher pytorch --amp
"""

_base_ = "_base_/rfdetr_coco.py"

settings = dict(image_size=384)
model = dict(backbone=dict(pretrain_img_size=384), bbox_head=dict(num_layers=2))
