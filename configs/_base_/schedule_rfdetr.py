"""RF-DETR's 100 epochs for a total batch of 16: a constant learning rate, and a moving average of the weights.

The trunk has 1.5 x 0.49 of the rate, which shrinks by 0.8 a block, the decoder 0.7. The authors' formula has one block
more than ours. Only the trunk has parameters that do not decay.
"""

_base_ = "schedule.py"

train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=100, val_interval=1)
param_scheduler = []
trunk = 1.5 * 0.7**2
stay = ("patch_embed", "absolute_pos_embed", "tokens")
inner = ("norm1.weight", "norm2.weight", "norm1.bias", "norm2.bias", "qkv.qv_bias", "attn.qkv.bias", "attn.proj.bias")
inner += ("mlp.fc1.bias", "mlp.fc2.bias")
custom_keys = {
    "backbone": dict(lr_mult=0.8 * trunk),
    **{f"backbone.{name}": dict(lr_mult=0.8 * trunk, decay_mult=0.0) for name in stay},
    **{name: dict(lr_mult=0.8 * trunk, decay_mult=0.0) for name in inner},
    "backbone.norm": dict(lr_mult=trunk, decay_mult=0.0),
    "bbox_head.decoder": dict(lr_mult=0.7),
}
optim_wrapper = dict(
    optimizer=dict(weight_decay=1e-4),
    paramwise_cfg=dict(layer_decay_rate=0.8, custom_keys=custom_keys),
    clip_grad=dict(max_norm=0.1),
)
del trunk, stay, inner, custom_keys
# A decay of 0.993, less in the first hundreds of iterations.
custom_hooks = [dict(type="EMAHook", ema_type="ExpMomentumEMA", momentum=0.007, gamma=100)]
