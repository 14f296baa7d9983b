"""The ViTDet authors' 100-epoch schedule for a total batch of 64 (64 GPUs x 1); their 184375 iterations are 100 epochs.

Learning rates shrink by `layer_decay_rate` from block to block towards the image.
"""

_base_ = "schedule_mvitv2.py"

train_cfg = dict(max_epochs=100)
param_scheduler = [
    _base_.param_scheduler[0],
    *(dict(_base_.drop, begin=100 * step / 184375) for step in (163889, 177546)),
]
optim_wrapper = dict(
    optimizer=dict(lr=1e-4),
    paramwise_cfg=dict(
        _delete_=True,
        layer_decay_rate=0.7,
        norm_decay_mult=0.0,
        custom_keys=dict(absolute_pos_embed=dict(decay_mult=0.0)),
    ),
)
