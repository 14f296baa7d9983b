"""The Swin authors' schedule for segmentation: 160000 iterations at a total batch of 16 (8 GPUs x 2)."""

_base_ = "schedule.py"

train_cfg = dict(type="IterBasedTrainLoop", max_iters=160000, val_interval=16000)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type="PolyLR", power=1.0, eta_min=0.0, by_epoch=False, begin=1500, end=160000),
]
optim_wrapper = dict(
    optimizer=dict(lr=6e-5, weight_decay=0.01),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        custom_keys=dict(
            absolute_pos_embed=dict(decay_mult=0.0),
            tokens=dict(decay_mult=0.0),  # of a ViT
            relative_position_bias_table=dict(decay_mult=0.0),
            cpb_mlp=dict(decay_mult=0.0),  # Swin V2's, like the next
            logit_scale=dict(decay_mult=0.0),
            rel_pos_h=dict(decay_mult=0.0),  # MViT's, like the next
            rel_pos_w=dict(decay_mult=0.0),
        ),
    ),
)
