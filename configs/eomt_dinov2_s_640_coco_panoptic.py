"""EoMT, DINOv2 ViT-S with registers, COCO panoptic at 640 pixels, 24 epochs: published 46.7 PQ
(counted: 23.98 M, 67.8 G at 640x640).

torchrun --nproc-per-node 4 -m vitdense train eomt_dinov2_s_640_coco_panoptic --launcher pytorch --amp
"""

_base_ = "_base_/eomt_coco.py"

num_blocks = 3
max_iters = 24 * _base_.epoch
model = dict(
    backbone=dict(
        arch="dinov2_small_reg",
        patch_size=16,
        num_joint_blocks=num_blocks,
        # Published for patches of 14 pixels: weights and positions are resized, as the authors do, by timm's rules.
        init_cfg=dict(type="Pretrained", checkpoint="dinov2_small_reg.fb_lvd142m", resize="timm"),
    ),
    panoptic_head=dict(in_channels=[384], num_blocks=num_blocks),
)
train_cfg = dict(max_iters=max_iters)
param_scheduler = [dict(_base_.param_scheduler[0], end=max_iters)]
custom_hooks = [dict(type="vitdense.MaskAnnealingHook", starts=(29564, 73910, 118256), ends=(59128, 103474, 147820))]
