"""The Swin authors' 36-epoch schedule for a total batch of 16 (8 GPUs x 2)."""

_base_ = "schedule.py"

train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=36, val_interval=1)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type="MultiStepLR", by_epoch=True, begin=0, end=36, milestones=[27, 33], gamma=0.1),
]
optim_wrapper = dict(
    paramwise_cfg=dict(
        custom_keys=dict(
            absolute_pos_embed=dict(decay_mult=0.0),
            tokens=dict(decay_mult=0.0),  # of a ViT
            relative_position_bias_table=dict(decay_mult=0.0),
            cpb_mlp=dict(decay_mult=0.0),  # Swin V2's, like the next
            logit_scale=dict(decay_mult=0.0),
            norm=dict(decay_mult=0.0),
        )
    ),
)
