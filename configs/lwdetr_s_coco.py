"""LW-DETR small, COCO boxes at 640 pixels, 60 epochs: published 48.0 box AP after pretraining on Objects365.

torchrun --nproc-per-node 8 -m vitdense train lwdetr_s_coco --launcher pytorch --amp
"""

_base_ = "_base_/lwdetr_coco.py"
