"""A short iteration-based schedule for one small machine."""

train_cfg = dict(type="IterBasedTrainLoop", max_iters=1300, val_interval=1300)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
param_scheduler = [
    dict(type="LinearLR", start_factor=0.01, by_epoch=False, begin=0, end=100),
    dict(type="CosineAnnealingLR", by_epoch=False, begin=100, end=1300, eta_min_ratio=0.01),
]
optim_wrapper = dict(
    type="OptimWrapper",
    constructor="vitdense.LayerDecayOptimWrapperConstructor",  # its log is one table, not a line per parameter
    optimizer=dict(type="AdamW", lr=2e-3, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(norm_decay_mult=0.0, custom_keys=dict(relative_position_bias_table=dict(decay_mult=0.0))),
    clip_grad=dict(max_norm=10.0),
)
auto_scale_lr = dict(enable=False, base_batch_size=4)
