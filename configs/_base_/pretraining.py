"""Runtime and optimiser of classification and masked pretraining."""

_base_ = "runtime.py"

default_scope = "mmengine"
randomness = dict(seed=0)
train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=300)
optim_wrapper = dict(
    type="OptimWrapper",
    constructor="vitdense.LayerDecayOptimWrapperConstructor",
    optimizer=dict(type="AdamW", lr=1e-3, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        bias_decay_mult=0.0,
        custom_keys={
            key: dict(decay_mult=0.0) for key in ("absolute_pos_embed", "tokens", "mask_token", "position_bias_table")
        },
    ),
)
