"""What the schedules share: loops, and AdamW with one table of its parameters in the log."""

val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
optim_wrapper = dict(
    type="OptimWrapper",
    constructor="vitdense.LayerDecayOptimWrapperConstructor",
    optimizer=dict(type="AdamW", lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
)
# --auto-scale-lr multiplies lr by (actual total batch) / base_batch_size.
auto_scale_lr = dict(enable=False, base_batch_size=16)
