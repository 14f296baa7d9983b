"""UPerNet, DINOv2 ViT-B with ViT-Adapter, 160k iterations: the recipe of DeiT-B, without a published result.

torchrun --nproc-per-node 8 -m vitdense train upernet_adapter_dinov2_b_ade20k --launcher pytorch --amp bfloat16
    --cfg-options model.backbone.trunk.frozen_stages=all   # trains adapter and heads alone

Patches stay 14 pixels, and crops are 37x37 of them, the map of the pretraining: neither patches nor positions are
resized. The authors of ViT-Adapter resize patches to 16.
"""

_base_ = "upernet_adapter_deit_b_ade20k.py"

model = dict(
    backbone=dict(
        trunk=dict(
            _delete_=True,
            type="vitdense.ViT",
            arch="dinov2_base",
            pretrain_img_size=518,
            drop_path_rate=0.3,
            init_cfg=dict(type="Pretrained", checkpoint="dinov2_base.fb_lvd142m"),
        ),
    ),
)
settings = dict(image_size=518)
