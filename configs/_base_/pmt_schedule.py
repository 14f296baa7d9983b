"""The PMT authors' optimiser for a total batch of 16 (4 GPUs x 4): 12 epochs of COCO, one warm-up, then a cosine."""

_base_ = "schedule_eomt.py"

param_scheduler = [
    dict(type="LinearLR", start_factor=1 / 6000, by_epoch=False, begin=0, end=6000),
    dict(type="CosineAnnealingLR", by_epoch=False, begin=6000, end=_base_.max_iters, eta_min=1e-9),
]
optim_wrapper = dict(
    constructor="vitdense.LayerDecayOptimWrapperConstructor",
    optimizer=dict(lr=2e-4),
    paramwise_cfg=dict(_delete_=True),
)
