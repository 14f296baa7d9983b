"""UPerNet, DINOv3 ViT-B and the deconvolution of BEiT, 160k iterations, trained as a whole with layer-wise decay.

torchrun --nproc-per-node 8 -m vitdense train upernet_dinov3_b_ade20k --launcher pytorch --amp bfloat16
    --cfg-options model.backbone.frozen_stages=all   # trains neck and heads alone
    --cfg-options model.backbone.finetune=lora
"""

_base_ = "upernet_vit_b_ade20k.py"

model = dict(
    backbone=dict(
        _delete_=True,
        type="vitdense.ViT",
        arch="dinov3_base",
        drop_path_rate=0.1,
        out_indices=(2, 5, 8, 11),
        out_norm="shared",
        init_cfg=dict(type="Pretrained", checkpoint="dinov3_base.fb_lvd1689m"),
    ),
)
