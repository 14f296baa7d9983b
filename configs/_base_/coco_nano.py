"""COCO 2017 instances at a short side of about 320 pixels, for the nano model."""

_base_ = "coco_instance.py"

train_pipeline = [
    dict(type="vitdense.SeedFromSample"),
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
    dict(type="RandomChoiceResize", scales=[(533, short) for short in range(256, 353, 32)], keep_ratio=True),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PackDetInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale=(533, 320), keep_ratio=True),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
    dict(type="PackDetInputs", meta_keys=("img_id", "img_path", "ori_shape", "img_shape", "scale_factor")),
]
train_dataloader = dict(
    batch_size=4,
    num_workers=1,
    sampler=dict(type="vitdense.SeededInfiniteSampler"),
    batch_sampler=None,
    dataset=dict(pipeline=train_pipeline),
)
val_dataloader = dict(num_workers=1, dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
