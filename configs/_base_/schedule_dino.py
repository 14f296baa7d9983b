"""The DINO authors' 12-epoch schedule for a total batch of 16: learning rates of the backbone are a tenth."""

_base_ = "schedule_3x.py"

train_cfg = dict(max_epochs=12)
param_scheduler = [dict(type="MultiStepLR", by_epoch=True, begin=0, end=12, milestones=[11], gamma=0.1)]
optim_wrapper = dict(
    optimizer=dict(weight_decay=1e-4),
    clip_grad=dict(max_norm=0.1),
    paramwise_cfg=dict(_delete_=True, custom_keys=dict(backbone=dict(lr_mult=0.1))),
)
