"""RF-DETR L, COCO boxes at 704 pixels, 100 epochs: published 56.5 box AP after pretraining on Objects365.

torchrun --nproc-per-node 4 -m vitdense train rfdetr_l_coco --launcher pytorch --amp
"""

_base_ = "_base_/rfdetr_coco.py"

settings = dict(image_size=704)
model = dict(backbone=dict(pretrain_img_size=704), bbox_head=dict(num_layers=4))
