"""A Cascade Mask R-CNN on a nano Swin and the embedded data set: what `make demo` trains on two CPU cores."""

_base_ = ["_base_/cascade_swin_nano.py", "_base_/shapes_instance.py", "_base_/runtime.py"]

model = dict(
    roi_head=dict(
        bbox_head=[dict(head, num_classes=8) for head in _base_.model.roi_head.bbox_head],
        mask_head=dict(num_classes=8),
    )
)
max_iters = 700
train_cfg = dict(type="IterBasedTrainLoop", max_iters=max_iters, val_interval=max_iters)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
param_scheduler = [
    dict(type="LinearLR", start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type="CosineAnnealingLR", by_epoch=False, begin=50, end=max_iters, eta_min_ratio=0.01),
]
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=1e-3, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        custom_keys=dict(relative_position_bias_table=dict(decay_mult=0.0)),
    ),
    clip_grad=dict(max_norm=10.0),
)
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=100), logger=dict(interval=20))
log_processor = dict(by_epoch=False, window_size=20)
randomness = dict(seed=0)
