"""The EoMT authors' optimiser for a total batch of 16 (4 GPUs x 4): 12 epochs of COCO, of 7391 iterations each.

The trunk waits for the first warm-up. Everything decays. `num_full_blocks` and the learning rate of DINOv3: see the
recipes.
"""

epoch = 7391
max_iters = 12 * epoch
train_cfg = dict(type="IterBasedTrainLoop", max_iters=max_iters, val_interval=epoch)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
param_scheduler = [dict(type="vitdense.TwoWarmupsLR", warmups=(500, 1000), by_epoch=False, end=max_iters)]
optim_wrapper = dict(
    type="OptimWrapper",
    constructor="vitdense.EoMTOptimWrapperConstructor",
    optimizer=dict(type="AdamW", lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(layer_decay_rate=0.8),
    clip_grad=dict(max_norm=0.01),
)
# --auto-scale-lr multiplies lr by (actual total batch) / 16.
auto_scale_lr = dict(enable=False, base_batch_size=16)
