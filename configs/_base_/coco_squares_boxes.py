"""COCO 2017 boxes, stretched to squares: the data of coco_squares.py without masks."""

_base_ = "coco_squares.py"

train_pipeline, test_pipeline = (
    [dict(step, with_mask=False) if step.type == "LoadAnnotations" else step for step in pipeline]
    for pipeline in (_base_.train_pipeline, _base_.test_pipeline)
)
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(metric="bbox")
test_evaluator = val_evaluator
