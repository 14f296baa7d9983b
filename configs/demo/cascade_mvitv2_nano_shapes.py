"""The demo on the embedded data set with a nano MViTv2 in place of the nano Swin; the rest is the same.

vitdense train cascade_mvitv2_nano_shapes
"""

_base_ = "cascade_swin_nano_shapes.py"

model = dict(
    backbone=dict(
        _delete_=True,
        type="vitdense.MViT",
        arch=dict(embed_dims=32, depths=(2, 2, 2, 2), num_heads=1),
        pretrain_img_size=128,  # windows of 32 tokens: four to a map of stride 4
        drop_path_rate=0.0,
        init_cfg=_base_.model.backbone.init_cfg,
    )
)
optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys=dict(rel_pos_h=dict(decay_mult=0.0), rel_pos_w=dict(decay_mult=0.0)))
)
