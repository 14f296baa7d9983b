"""RF-DETR, small in every part, on the boxes of the embedded data set.

python tools/train.py configs/demo/rfdetr_nano_shapes.py
"""

_base_ = [
    "../_base_/rfdetr.py",
    "../_base_/shapes_boxes.py",
    "../_base_/schedule_nano.py",
    "../_base_/det_runtime_iter.py",
]

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
train_dataloader = dict(batch_size=8)
optim_wrapper = dict(optimizer=dict(lr=5e-4), clip_grad=dict(max_norm=1.0))
