"""RF-DETR S on a DINOv3 ViT-S, COCO boxes at 512 pixels, 100 epochs.

No one published such a model. RF-DETR's own start from Objects365, and its authors say that another trunk, without
that, gives less: expect below 53.0 box AP.

torchrun --nproc-per-node 4 -m vitdense train rfdetr_dinov3_s_coco --launcher pytorch --amp
"""

_base_ = "_base_/rfdetr_coco.py"

backbone = dict(
    _delete_=True,
    type="vitdense.WindowedViT",
    arch="dinov3_small",
    init_cfg=dict(type="Pretrained", checkpoint="dinov3_small.fb_lvd1689m"),
)
model = dict(backbone=backbone)
del backbone
