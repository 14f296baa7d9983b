"""What the segmentation data sets share: mIoU and test-time augmentation."""

_base_ = "data.py"

test_pipeline = [dict(type="LoadImageFromFile"), dict(type="LoadAnnotations"), dict(type="PackSegInputs")]
tta_pipeline = [  # for vitdense test --tta
    dict(type="LoadImageFromFile"),
    dict(
        type="TestTimeAug",
        transforms=[
            [dict(type="Resize", scale_factor=ratio, keep_ratio=True) for ratio in (0.75, 1.0, 1.25)],
            [dict(type="RandomFlip", prob=prob, direction="horizontal") for prob in (0.0, 1.0)],
            [dict(type="LoadAnnotations")],  # after Resize: the metric compares at the size of the file
            [dict(type="PackSegInputs")],
        ],
    ),
]
val_evaluator = dict(type="IoUMetric", iou_metrics=["mIoU"])
test_evaluator = val_evaluator
