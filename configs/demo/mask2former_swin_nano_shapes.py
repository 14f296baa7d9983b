"""Mask2Former, small in every part, on a nano Swin and the embedded data set.

vitdense train mask2former_swin_nano_shapes
"""

_base_ = ["../_base_/mask2former.py", "../_base_/swin_nano.py", "../_base_/shapes_instance.py", "../_base_/det_nano.py"]

width = 64  # channels of pixel decoder and queries
num_classes = 8
classes = dict(num_things_classes=num_classes, num_stuff_classes=0)
positions = dict(num_feats=width // 2)
attention = dict(embed_dims=width, num_heads=4)
ffn = dict(embed_dims=width, feedforward_channels=4 * width)
model = dict(
    data_preprocessor=dict(batch_augments=None),
    backbone=dict(_delete_=True, **_base_.swin_nano),
    panoptic_head=dict(
        **classes,
        in_channels=[32, 64, 128, 256],
        feat_channels=width,
        out_channels=width,
        num_queries=20,
        pixel_decoder=dict(
            encoder=dict(num_layers=1, layer_cfg=dict(self_attn_cfg=attention, ffn_cfg=ffn)),
            positional_encoding=positions,
        ),
        positional_encoding=positions,
        transformer_decoder=dict(
            num_layers=3, layer_cfg=dict(self_attn_cfg=attention, cross_attn_cfg=attention, ffn_cfg=ffn)
        ),
        loss_cls=dict(class_weight=[1.0] * num_classes + [0.1]),
    ),
    panoptic_fusion_head=classes,
    train_cfg=dict(num_points=1024),
)
optim_wrapper = dict(optimizer=dict(lr=1e-3))
