"""COCO 2017 instances with the multi-scale and crop augmentation of DETR that the Swin authors use."""

_base_ = "data.py"

data_root = "data/coco/"
train_scales = [(short, 1333) for short in range(480, 801, 32)]

train_pipeline = [
    dict(type="vitdense.SeedFromSample"),
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
    dict(type="RandomFlip", prob=0.5),
    dict(
        type="RandomChoice",
        transforms=[
            [dict(type="RandomChoiceResize", scales=train_scales, keep_ratio=True)],
            [
                dict(type="RandomChoiceResize", scales=[(s, 1333) for s in (400, 500, 600)], keep_ratio=True),
                dict(type="RandomCrop", crop_type="absolute_range", crop_size=(384, 600), allow_negative_crop=True),
                dict(type="RandomChoiceResize", scales=train_scales, keep_ratio=True),
            ],
        ],
    ),
    dict(type="PackDetInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale=(1333, 800), keep_ratio=True),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
    dict(type="PackDetInputs", meta_keys=("img_id", "img_path", "ori_shape", "img_shape", "scale_factor")),
]
train_dataloader = dict(
    sampler=dict(type="vitdense.SeededEpochSampler"),
    batch_sampler=dict(type="AspectRatioBatchSampler"),
    dataset=dict(
        type="CocoDataset",
        data_root=data_root,
        ann_file="annotations/instances_train2017.json",
        data_prefix=dict(img="train2017/"),
        filter_cfg=dict(filter_empty_gt=True, min_size=32),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    dataset=dict(
        type="CocoDataset",
        data_root=data_root,
        ann_file="annotations/instances_val2017.json",
        data_prefix=dict(img="val2017/"),
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
# engine='pycocotools' evaluates by another package: the same numbers, slower.
val_evaluator = dict(type="vitdense.FasterCocoMetric", metric=["bbox", "segm"])
test_evaluator = val_evaluator
