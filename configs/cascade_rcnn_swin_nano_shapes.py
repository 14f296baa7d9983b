"""The demo on the embedded data set without masks.

python tools/train.py configs/cascade_rcnn_swin_nano_shapes.py
"""

_base_ = "cascade_swin_nano_shapes.py"

train_pipeline, test_pipeline = (
    [dict(step, with_mask=False) if step.type == "LoadAnnotations" else step for step in pipeline]
    for pipeline in (_base_.train_pipeline, _base_.test_pipeline)
)
model = dict(roi_head=dict(mask_roi_extractor=None, mask_head=None))
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(metric="bbox")
test_evaluator = val_evaluator
