"""EoMT, DINOv2 ViT-L with registers, ADE20K at 512 pixels, 31 epochs: published 58.4 mIoU.

torchrun --nproc-per-node 4 -m vitdense train eomt_dinov2_l_512_ade20k --launcher pytorch --amp
"""

_base_ = "_base_/eomt_ade20k.py"

model = dict(
    backbone=dict(
        arch="dinov2_large_reg",
        patch_size=16,
        # Published for patches of 14 pixels: weights and positions are resized, as the authors do, by timm's rules.
        init_cfg=dict(type="Pretrained", checkpoint="dinov2_large_reg.fb_lvd142m", resize="timm"),
    ),
    decode_head=dict(in_channels=[1024]),
)
