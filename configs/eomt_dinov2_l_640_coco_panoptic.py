"""EoMT, DINOv2 ViT-L with registers, COCO panoptic at 640 pixels, 12 epochs: published 56.0 PQ
(counted: 316.70 M, 668.0 G at 640x640).

torchrun --nproc-per-node 4 -m vitdense train eomt_dinov2_l_640_coco_panoptic --launcher pytorch --amp
"""

_base_ = "_base_/eomt_coco.py"

model = dict(
    backbone=dict(
        arch="dinov2_large_reg",
        patch_size=16,
        # Published for patches of 14 pixels: weights and positions are resized, as the authors do, by timm's rules.
        init_cfg=dict(type="Pretrained", checkpoint="dinov2_large_reg.fb_lvd142m", resize="timm"),
    ),
    panoptic_head=dict(in_channels=[1024]),
)
