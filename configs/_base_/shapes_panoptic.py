"""The embedded data set as panoptic segments, drawn into data/shapes on first use: eight shapes and the background."""

_base_ = "data.py"

data_root = "data/shapes/"

train_pipeline = [
    dict(type="vitdense.SeedFromSample"),
    dict(type="LoadImageFromFile"),
    dict(type="vitdense.LoadPanopticAnnotations"),
    dict(type="Resize", scale=(256, 256), keep_ratio=True),
    dict(type="RandomFlip", prob=0.75, direction=["horizontal", "vertical", "diagonal"]),
    dict(type="PackDetInputs"),
]
meta_keys = ("img_id", "img_path", "ori_shape", "img_shape", "scale_factor", "seg_map_path", "segments_info")
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale=(256, 256), keep_ratio=True),
    dict(type="vitdense.LoadPanopticAnnotations"),
    dict(type="PackDetInputs", meta_keys=meta_keys),
]
train_dataloader = dict(
    batch_size=4,
    num_workers=1,
    dataset=dict(
        type="vitdense.ShapesPanopticDataset",
        data_root=data_root,
        ann_file="panoptic/panoptic_train.json",
        data_prefix=dict(img="train/", seg="panoptic/train/"),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=8,
    num_workers=1,
    dataset=dict(
        type="vitdense.ShapesPanopticDataset",
        data_root=data_root,
        ann_file="panoptic/panoptic_val.json",
        data_prefix=dict(img="val/", seg="panoptic/val/"),
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type="vitdense.PanopticMetric")
test_evaluator = val_evaluator
del meta_keys
