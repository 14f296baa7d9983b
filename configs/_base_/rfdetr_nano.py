"""RF-DETR, small in every part, for images of 256 pixels."""

_base_ = "rfdetr.py"

width, queries = 128, 200  # channels of the trunk and of the head; of 256 positions: with 40 it did not learn
model = dict(
    data_preprocessor=dict(batch_augments=None),
    backbone=dict(
        _delete_=True,
        type="vitdense.WindowedViT",
        arch=dict(embed_dims=width, depth=6, num_heads=4),
        pretrain_img_size=256,
        out_indices=(1, 3, 5),
    ),
    neck=dict(in_channels=[width] * 3, out_channels=width, num_blocks=2),
    bbox_head=dict(
        in_channels=width,
        num_queries=queries,
        num_groups=2,
        num_layers=2,
        num_heads=(4, 8),
        ffn_dims=4 * width,
    ),
    test_cfg=dict(max_per_img=100),
)
