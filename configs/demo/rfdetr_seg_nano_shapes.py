"""RF-DETR with masks, small in every part, on the embedded data set.

python tools/train.py configs/demo/rfdetr_seg_nano_shapes.py
"""

_base_ = "rfdetr_nano_shapes.py"

model = dict(bbox_head=dict(with_masks=True))
train_pipeline, test_pipeline = (
    [dict(step, with_mask=True) if step.type == "LoadAnnotations" else step for step in pipeline]
    for pipeline in (_base_.train_pipeline, _base_.test_pipeline)
)
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(metric=["bbox", "segm"])
test_evaluator = val_evaluator
