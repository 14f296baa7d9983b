"""RF-DETR S on a LingBot-Vision ViT-S, COCO boxes at 512 pixels, 100 epochs.

No one published such a model. RF-DETR's own start from Objects365, and its authors say that another trunk, without
that, gives less: expect below 53.0 box AP.

torchrun --nproc-per-node 4 -m vitdense train rfdetr_lingbot_s_coco --launcher pytorch --amp
"""

_base_ = "rfdetr_dinov3_s_coco.py"

model = dict(backbone=dict(init_cfg=dict(checkpoint="lingbot_small.robbyant")))
