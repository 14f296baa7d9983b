"""Sanity check: overfits 16 training images of COCO, and is evaluated on the same 16.

vitdense train cascade_swin_nano_coco16 --cfg-options data_root=/path/to/coco
"""

_base_ = "cascade_swin_nano_coco.py"

train_pipeline = [
    dict(type="vitdense.SeedFromSample"),
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
    dict(type="Resize", scale=(533, 320), keep_ratio=True),  # the evaluation's
    dict(type="PackDetInputs"),
]
train_dataloader = dict(dataset=dict(indices=16, filter_cfg=None, pipeline=train_pipeline))
val_dataloader = dict(
    dataset=dict(indices=16, ann_file="annotations/instances_train2017.json", data_prefix=dict(img="train2017/"))
)
test_dataloader = val_dataloader
