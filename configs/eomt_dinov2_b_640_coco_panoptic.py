"""EoMT, DINOv2 ViT-B with registers, COCO panoptic at 640 pixels, 24 epochs: published 51.6 PQ
(counted: 93.66 M, 215.5 G at 640x640).

torchrun --nproc-per-node 4 tools/train.py configs/eomt_dinov2_b_640_coco_panoptic.py --launcher pytorch --amp
"""

_base_ = "_base_/eomt_coco.py"

num_blocks = 3
max_iters = 24 * _base_.epoch
model = dict(
    backbone=dict(
        arch="dinov2_base_reg",
        patch_size=16,
        num_joint_blocks=num_blocks,
        # Of patches of 14 pixels: weights and positions are resized, as the authors do, by timm's rules.
        init_cfg=dict(type="Pretrained", checkpoint="dinov2_base_reg.fb_lvd142m", resize="timm"),
    ),
    panoptic_head=dict(in_channels=[768], num_blocks=num_blocks),
)
train_cfg = dict(max_iters=max_iters)
param_scheduler = [dict(_base_.param_scheduler[0], end=max_iters)]
custom_hooks = [dict(type="vitdense.MaskAnnealingHook", starts=(29564, 73910, 118256), ends=(59128, 103474, 147820))]
