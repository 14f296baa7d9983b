"""RF-DETR M, COCO boxes at 576 pixels, 100 epochs: published 54.7 box AP after pretraining on Objects365.

torchrun --nproc-per-node 4 -m vitdense train rfdetr_m_coco --launcher pytorch --amp
"""

_base_ = "_base_/rfdetr_coco.py"

settings = dict(image_size=576)
model = dict(backbone=dict(pretrain_img_size=576), bbox_head=dict(num_layers=4))
