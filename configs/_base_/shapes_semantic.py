"""The embedded data set as label maps, drawn into data/shapes on first use: background and eight shapes."""

_base_ = "seg_data.py"

data_root = "data/shapes/"

train_pipeline = [
    dict(type="vitdense.SeedFromSample"),
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations"),
    dict(type="RandomFlip", prob=0.75, direction=["horizontal", "vertical", "diagonal"]),
    dict(type="PackSegInputs"),
]
load, augment = _base_.tta_pipeline
tta_pipeline = [load, dict(augment, transforms=augment.transforms[1:])]  # flips alone: training has one scale
del load, augment
train_dataloader = dict(
    batch_size=4,
    num_workers=1,
    dataset=dict(
        type="vitdense.ShapesSegDataset",
        data_root=data_root,
        data_prefix=dict(img_path="train", seg_map_path="semantic/train"),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=8,
    num_workers=1,
    dataset=dict(
        type="vitdense.ShapesSegDataset",
        data_root=data_root,
        data_prefix=dict(img_path="val", seg_map_path="semantic/val"),
        test_mode=True,
        pipeline=_base_.test_pipeline,
    ),
)
test_dataloader = val_dataloader
