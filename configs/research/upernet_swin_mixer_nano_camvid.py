"""The nano UPerNet from scratch on CamVid with a Swin-Mixer of the cost of the nano Swin.

vitdense train upernet_swin_mixer_nano_camvid --cfg-options data_root=/path/to/camvid
    model.backbone.shift=False  # windows that do not shift
"""

_base_ = "../demo/upernet_swin_nano_camvid.py"

model = dict(
    backbone=dict(
        _delete_=True,
        type="vitdense.SwinMixer",
        arch=dict(embed_dims=40, depths=(2, 2, 2, 2), num_heads=(2, 4, 8, 16)),
        window_size=8,
        drop_path_rate=0.0,
        init_cfg=_base_.model.backbone.init_cfg,
    ),
    decode_head=dict(in_channels=[40, 80, 160, 320]),
    auxiliary_head=dict(in_channels=160),
)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={"spatial_mlp.bias": dict(decay_mult=0.0)}))
