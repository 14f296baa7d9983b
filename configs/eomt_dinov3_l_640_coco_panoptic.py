"""EoMT, DINOv3 ViT-L, COCO panoptic at 640 pixels, 12 epochs: published 56.8 PQ
(counted: 315.03 M, 668.0 G at 640x640).

torchrun --nproc-per-node 4 -m vitdense train eomt_dinov3_l_640_coco_panoptic --launcher pytorch --amp
"""

_base_ = "_base_/eomt_coco.py"

model = dict(
    backbone=dict(
        arch="dinov3_large",
        rope_augment=dict(rescale=2.0),
        init_cfg=dict(type="Pretrained", checkpoint="dinov3_large.fb_lvd1689m"),
    ),
    panoptic_head=dict(in_channels=[1024]),
)
# The blocks that queries take part in do not decay.
optim_wrapper = dict(optimizer=dict(lr=2e-4), paramwise_cfg=dict(num_full_blocks=_base_.num_blocks))
param_scheduler = [dict(_base_.param_scheduler[0], warmups=(2000, 3000))]
custom_hooks = [
    dict(type="vitdense.MaskAnnealingHook", starts=(0, 29564, 44346, 59128), ends=(3000, 44346, 59128, 73910))
]
