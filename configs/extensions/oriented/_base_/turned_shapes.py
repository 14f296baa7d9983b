"""The embedded data set of oriented boxes: drawn into data/turned on first use."""

_base_ = "../../../_base_/shapes_boxes.py"

data_root = "data/turned/"
load = dict(type="LoadAnnotations", with_bbox=True, box_type="corners")
train_pipeline, test_pipeline = (
    [load if step.type == "LoadAnnotations" else step for step in pipeline]
    for pipeline in (_base_.train_pipeline, _base_.test_pipeline)
)
train_dataloader = dict(
    dataset=dict(
        type="vitdense.TurnedShapesDataset",
        data_root=data_root,
        ann_file="annotations/oriented_train.json",
        pipeline=train_pipeline,
    )
)
val_dataloader = dict(
    dataset=dict(
        type="vitdense.TurnedShapesDataset",
        data_root=data_root,
        ann_file="annotations/oriented_val.json",
        pipeline=test_pipeline,
    )
)
test_dataloader = val_dataloader
del load
val_evaluator = dict(type="vitdense.OrientedMetric")
test_evaluator = val_evaluator
