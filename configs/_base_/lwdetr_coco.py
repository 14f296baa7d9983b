"""LW-DETR on COCO: RF-DETR on a smaller ViT in 4 x 4 windows without class token, at 640 pixels, 60 epochs.

Of 32 images a batch, which is resized to 448 to 832 pixels, its authors' also to 896. The trunk starts with random
weights. Their training starts from a whole detector of Objects365, ``LWDETR_{tiny,small,medium}_30e_objects365.pth``
where the trained models are; of it this takes all but the classes:

--cfg-options load_from=FILE --fresh 'bbox_head\\.(selections\\.\\d+\\.)?classes\\..+'
"""

_base_ = "rfdetr_coco.py"

settings = dict(image_size=640)
model = dict(
    data_preprocessor=dict(pad_size_divisor=64, batch_augments=[dict(type="vitdense.BatchResize", step=64, most=3)]),
    backbone=dict(
        arch="lwdetr_small",
        num_windows=4,
        global_indices=(2, 4, 5, 8),
        out_norm="none",
        pretrain_img_size=224,
        init_cfg=None,
    ),
    neck=dict(in_channels=[192] * 4, norm="batch"),
)
sync_bn = "torch"
train_cfg = dict(max_epochs=60)
trunk = 1.5 * 0.7**2
# The longest name that is in a parameter's name counts, of equally long ones the first: the dots make them longer.
stay = ("absolute_pos_embed", "patch_embed.proj.bias", ".gamma_1", ".gamma_2", "norm1.weight", "norm2.weight")
stay += ("norm1.bias", "norm2.bias", "qkv.qv_bias", "attn.proj.bias", "mlp.fc1.bias", "mlp.fc2.bias")
custom_keys = dict(
    _delete_=True,
    backbone=dict(lr_mult=trunk),
    **{name: dict(lr_mult=trunk, decay_mult=0.0) for name in stay},
    **{"bbox_head.decoder": dict(lr_mult=0.7)},
)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=custom_keys))
del trunk, stay, custom_keys
custom_hooks = [dict(type="EMAHook", ema_type="ExponentialMovingAverage", momentum=0.0003)]
auto_scale_lr = dict(base_batch_size=32)
