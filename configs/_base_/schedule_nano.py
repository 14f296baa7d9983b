"""A short iteration-based schedule for one small machine."""

_base_ = "schedule.py"

train_cfg = dict(type="IterBasedTrainLoop", max_iters=1300, val_interval=1300)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.01, by_epoch=False, begin=0, end=100),
    dict(type="CosineAnnealingLR", by_epoch=False, begin=100, end=1300, eta_min_ratio=0.01),
]
optim_wrapper = dict(
    optimizer=dict(lr=2e-3),
    paramwise_cfg=dict(norm_decay_mult=0.0, custom_keys=dict(relative_position_bias_table=dict(decay_mult=0.0))),
    clip_grad=dict(max_norm=10.0),
)
auto_scale_lr = dict(base_batch_size=4)
