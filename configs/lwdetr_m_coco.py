"""LW-DETR medium, COCO boxes at 640 pixels, 60 epochs: published 52.5 box AP after pretraining on Objects365.

torchrun --nproc-per-node 8 -m vitdense train lwdetr_m_coco --launcher pytorch --amp
"""

_base_ = "_base_/lwdetr_coco.py"

model = dict(backbone=dict(arch="lwdetr_medium"), neck=dict(in_channels=[384] * 4))
train_dataloader = dict(batch_size=2)
optim_wrapper = dict(paramwise_cfg=dict(layer_decay_rate=0.7))
auto_scale_lr = dict(base_batch_size=16)
