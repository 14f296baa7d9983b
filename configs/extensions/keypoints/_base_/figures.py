"""The embedded data set with keypoints: drawn into data/figures on first use."""

_base_ = "../../../_base_/shapes_boxes.py"

data_root = "data/figures/"
steps = dict(LoadAnnotations=dict(type="vitdense.LoadKeypoints"), RandomFlip=dict(type="RandomFlip", prob=0.5))
train_pipeline = [steps.get(step.type, step) for step in _base_.train_pipeline]
train_dataloader = dict(
    dataset=dict(
        type="vitdense.FiguresDataset",
        data_root=data_root,
        ann_file="annotations/keypoints_train.json",
        pipeline=train_pipeline,
    )
)
val_dataloader = dict(
    dataset=dict(type="vitdense.FiguresDataset", data_root=data_root, ann_file="annotations/keypoints_val.json")
)
test_dataloader = val_dataloader
del steps
val_evaluator = dict(type="vitdense.KeypointMetric")
test_evaluator = val_evaluator
