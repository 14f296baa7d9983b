"""COCO 2017 instances as HTC++ trains and tests: short sides of 400 to 1400 pixels, long sides up to 1600.

The authors' scales for multi-scale tests are not published; these are CBNetV2's. InstaBoost, which augments half of
the images, fails with NumPy 1.24 and later. They get large-scale jitter instead.
"""

_base_ = "../../_base_/coco_instance.py"

train_pipeline = [
    dict(type="vitdense.SeedFromSample"),
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
    dict(type="RandomFlip", prob=0.5),
    dict(
        type="RandomChoice",
        transforms=[
            [dict(type="RandomResize", scale=[(1600, 400), (1600, 1400)], keep_ratio=True)],
            [
                dict(type="RandomResize", scale=(1600, 1400), ratio_range=(0.1, 2.0), keep_ratio=True),
                dict(type="RandomCrop", crop_size=(1400, 1600), recompute_bbox=True, allow_negative_crop=True),
                dict(type="FilterAnnotations", min_gt_bbox_wh=(1e-2, 1e-2), keep_empty=False),
            ],
        ],
    ),
    dict(type="PackDetInputs"),
]
test_pipeline = [dict(step, scale=(1600, 1400)) if step.type == "Resize" else step for step in _base_.test_pipeline]
train_dataloader = dict(batch_size=1, dataset=dict(pipeline=train_pipeline))  # on 16 GPUs
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

tta_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(
        type="TestTimeAug",
        transforms=[
            [
                dict(type="Resize", scale=scale, keep_ratio=True)
                for scale in ((1600, 1000), (1600, 1400), (1800, 1200), (1800, 1600))
            ],
            [dict(type="RandomFlip", prob=0.0), dict(type="RandomFlip", prob=1.0)],
            [
                dict(
                    type="PackDetInputs",
                    meta_keys=(
                        "img_id",
                        "img_path",
                        "ori_shape",
                        "img_shape",
                        "scale_factor",
                        "flip",
                        "flip_direction",
                    ),
                )
            ],
        ],
    ),
]
tta_model = dict(
    type="vitdense.InstanceTTAModel",
    tta_cfg=dict(nms=dict(type="soft_nms", iou_threshold=0.5, min_score=0.001), max_per_img=100),
)
