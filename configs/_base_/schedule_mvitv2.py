"""The MViTv2 authors' 36-epoch schedule for a total batch of 64 (8 GPUs x 8); their 67500 iterations are 36 epochs."""

_base_ = "schedule.py"

train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=36, val_interval=1)
drop = dict(type="ConstantLR", factor=0.1, by_epoch=True, convert_to_iter_based=True)  # for good, from `begin` on
param_scheduler = [
    dict(type="LinearLR", start_factor=0.001, by_epoch=False, begin=0, end=250),
    dict(drop, begin=36 * 52500 / 67500),
    dict(drop, begin=36 * 62500 / 67500),  # within an epoch, which milestones of MultiStepLR could not be
]
optim_wrapper = dict(
    optimizer=dict(lr=1.6e-4, weight_decay=0.1),
    paramwise_cfg=dict(  # biases do decay
        norm_decay_mult=0.0,
        custom_keys=dict(
            absolute_pos_embed=dict(decay_mult=0.0),
            rel_pos_h=dict(decay_mult=0.0),
            rel_pos_w=dict(decay_mult=0.0),
        ),
    ),
)
auto_scale_lr = dict(base_batch_size=64)
