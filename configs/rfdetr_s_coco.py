"""RF-DETR S, COCO boxes at 512 pixels, 100 epochs: published 53.0 box AP after pretraining on Objects365.

torchrun --nproc-per-node 4 -m vitdense train rfdetr_s_coco --launcher pytorch --amp
"""

_base_ = "_base_/rfdetr_coco.py"
