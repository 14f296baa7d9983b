"""ADE20K scenes, 150 classes, with the augmentation of the Swin authors: crops of 512 pixels."""

_base_ = "seg_data.py"

data_root = "data/ade/ADEChallengeData2016/"
scale = (2048, 512)  # short side 512, but no side above 2048

train_pipeline = [
    dict(type="vitdense.SeedFromSample"),
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations"),
    dict(type="RandomResize", scale=scale, ratio_range=(0.5, 2.0), keep_ratio=True),
    dict(type="RandomCrop", crop_size=(512, 512), cat_max_ratio=0.75),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PhotoMetricDistortion"),
    dict(type="PackSegInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale=scale, keep_ratio=True),
    dict(type="LoadAnnotations"),  # after Resize: the metric compares at the size of the file
    dict(type="PackSegInputs"),
]
# Ratios to `scale`, as in the authors' tests; mmseg's own config for ADE20K has them to the size of the file.
scales = [
    dict(type="Resize", scale=tuple(int(side * ratio) for side in scale), keep_ratio=True)
    for ratio in (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)
]
load, augment = _base_.tta_pipeline
tta_pipeline = [load, dict(augment, transforms=[scales, *augment.transforms[1:]])]
del load, augment
train_dataloader = dict(
    dataset=dict(
        type="ADE20KDataset",  # label 0 is no class: 1 to 150 become 0 to 149
        data_root=data_root,
        data_prefix=dict(img_path="images/training", seg_map_path="annotations/training"),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    dataset=dict(
        type="ADE20KDataset",
        data_root=data_root,
        data_prefix=dict(img_path="images/validation", seg_map_path="annotations/validation"),
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
