"""COCO 2017 instances with large-scale jitter: images 0.1 to 2 times as large as 1024 pixels, cropped and padded."""

_base_ = "coco_instance.py"

image_size = (1024, 1024)
train_pipeline = [
    dict(type="vitdense.SeedFromSample"),
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
    dict(type="RandomFlip", prob=0.5),
    dict(type="RandomResize", scale=image_size, ratio_range=(0.1, 2.0), keep_ratio=True),
    dict(type="RandomCrop", crop_size=image_size, recompute_bbox=True, allow_negative_crop=True),
    dict(type="FilterAnnotations", min_gt_bbox_wh=(1e-2, 1e-2), keep_empty=False),
    dict(type="Pad", size=image_size, pad_val=dict(img=(128, 128, 128))),
    dict(type="PackDetInputs"),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
