"""EoMT, DINOv3 ViT-L, ADE20K at 512 pixels, 16 epochs: published 59.5 mIoU.

torchrun --nproc-per-node 4 -m vitdense train eomt_dinov3_l_512_ade20k --launcher pytorch --amp

There is no layer-wise decay. Of the authors' config, a tenth of the learning rate in the trunk has no effect.
"""

_base_ = "_base_/eomt_ade20k.py"

max_iters = 16 * _base_.epoch
model = dict(
    backbone=dict(
        arch="dinov3_large",
        rope_augment=dict(rescale=2.0),
        init_cfg=dict(type="Pretrained", checkpoint="dinov3_large.fb_lvd1689m"),
    ),
    decode_head=dict(in_channels=[1024]),
)
train_cfg = dict(max_iters=max_iters)
optim_wrapper = dict(optimizer=dict(lr=2e-4), paramwise_cfg=dict(_delete_=True, layer_decay_rate=1.0))
param_scheduler = [dict(_base_.param_scheduler[0], warmups=(2000, 3000), end=max_iters)]
custom_hooks = [dict(type="vitdense.MaskAnnealingHook", starts=(0, 6520, 9780, 13040), ends=(3000, 9780, 13040, 16300))]
