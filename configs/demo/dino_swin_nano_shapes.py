"""DINO, small in every part, on a nano Swin and the boxes of the embedded data set.

vitdense train dino_swin_nano_shapes
"""

_base_ = ["../_base_/dino.py", "../_base_/swin_nano.py", "../_base_/shapes_boxes.py", "../_base_/det_nano.py"]

num_classes = 8
width = 64  # channels of neck and transformer
attention = dict(embed_dims=width, num_heads=4)
ffn_cfg = dict(embed_dims=width, feedforward_channels=4 * width)
model = dict(
    num_queries=300,  # of 1360 tokens; with 40 it did not learn
    backbone=dict(_delete_=True, **_base_.swin_nano, out_indices=(1, 2, 3)),
    neck=dict(in_channels=[64, 128, 256], out_channels=width),
    encoder=dict(num_layers=1, layer_cfg=dict(self_attn_cfg=attention, ffn_cfg=ffn_cfg)),
    decoder=dict(num_layers=3, layer_cfg=dict(self_attn_cfg=attention, cross_attn_cfg=attention, ffn_cfg=ffn_cfg)),
    positional_encoding=dict(num_feats=width // 2),
    bbox_head=dict(num_classes=num_classes, embed_dims=width),
    dn_cfg=dict(group_cfg=dict(num_dn_queries=40)),
    test_cfg=dict(max_per_img=100),
)
optim_wrapper = dict(optimizer=dict(lr=5e-4))
