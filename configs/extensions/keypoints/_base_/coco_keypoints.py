"""COCO 2017's people with keypoints, stretched to squares: boxes and keypoints, the augmentation of coco_squares.py."""

_base_ = "../../../_base_/coco_squares_boxes.py"

load = dict(type="vitdense.LoadKeypoints")
train_pipeline = [load if step.type == "LoadAnnotations" else step for step in _base_.train_pipeline]
train_dataloader = dict(
    dataset=dict(
        type="vitdense.KeypointDataset",
        ann_file="annotations/person_keypoints_train2017.json",
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    dataset=dict(type="vitdense.KeypointDataset", ann_file="annotations/person_keypoints_val2017.json"),
)
test_dataloader = val_dataloader
del load
val_evaluator = dict(type="vitdense.KeypointMetric")
test_evaluator = val_evaluator
