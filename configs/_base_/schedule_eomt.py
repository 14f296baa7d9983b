"""The EoMT authors' optimiser for a total batch of 16 (4 GPUs x 4): 12 epochs of COCO, of 7391 iterations each.

The trunk waits for the first warm-up. Everything decays. `num_full_blocks` and the learning rate of DINOv3: see the
recipes.
"""

_base_ = "schedule.py"

epoch = 7391
max_iters = 12 * epoch
train_cfg = dict(type="IterBasedTrainLoop", max_iters=max_iters, val_interval=epoch)
param_scheduler = [dict(type="vitdense.TwoWarmupsLR", warmups=(500, 1000), by_epoch=False, end=max_iters)]
optim_wrapper = dict(
    constructor="vitdense.EoMTOptimWrapperConstructor",
    paramwise_cfg=dict(layer_decay_rate=0.8),
    clip_grad=dict(max_norm=0.01),
)
