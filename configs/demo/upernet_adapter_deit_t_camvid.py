"""UPerNet and DeiT-Ti with ViT-Adapter on CamVid: minutes on two CPU cores.

vitdense train upernet_adapter_deit_t_camvid --cfg-options data_root=/path/to/camvid
    model.backbone.trunk.frozen_stages=12   # trains the adapter and the heads alone
"""

_base_ = "upernet_deit_t_camvid.py"

pretrained = _base_.model.backbone.init_cfg
model = dict(
    backbone=dict(
        _delete_=True,
        type="vitdense.ViTAdapter",
        vit_feature="each",
        conv_inplane=32,
        trunk=dict(type="vitdense.ViT", arch="deit_tiny", drop_path_rate=0.1, init_cfg=pretrained),
    ),
    neck=None,
)
new = dict(lr_mult=3.0)  # starts from nothing
optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys={"level_embed": dict(decay_mult=0.0), "backbone.spm": new, "interactions": new}),
)
