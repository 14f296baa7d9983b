"""The Swin authors' 36-epoch schedule for a total batch of 16 (8 GPUs x 2)."""

train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=36, val_interval=1)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
param_scheduler = [
    dict(type="LinearLR", start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type="MultiStepLR", by_epoch=True, begin=0, end=36, milestones=[27, 33], gamma=0.1),
]
optim_wrapper = dict(
    type="OptimWrapper",
    constructor="vitdense.LayerDecayOptimWrapperConstructor",  # its log is one table, not a line per parameter
    optimizer=dict(type="AdamW", lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
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
# --auto-scale-lr multiplies lr by (actual total batch) / 16.
auto_scale_lr = dict(enable=False, base_batch_size=16)
