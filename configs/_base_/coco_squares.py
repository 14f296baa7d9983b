"""COCO 2017 instances, stretched to squares: RF-DETR's augmentation, whose crops are those of DETR.

A side that is not 512: ``settings = dict(image_size=384)``, or ``(288, 512)``: height and width.
The crops follow, which the authors' do not.
"""

_base_ = "coco_instance.py"

square = dict(type="Resize", scale=(512, 512), keep_ratio=False)
crops = [
    dict(type="RandomChoiceResize", scales=[(s, 1333) for s in (400, 500, 600)], keep_ratio=True),
    dict(type="vitdense.CropBetween", smallest=(384, 384), crop_size=(600, 600), allow_negative_crop=True),
]
train_pipeline = [
    *_base_.train_pipeline[:4],
    dict(type="RandomApply", transforms=crops, prob=0.5),
    square,
    dict(type="PackDetInputs"),
]
test_pipeline = [square if step.type == "Resize" else step for step in _base_.test_pipeline]
del square, crops
train_dataloader = dict(
    batch_size=4,
    num_workers=4,
    dataset=dict(filter_cfg=dict(filter_empty_gt=False), pipeline=train_pipeline),
)
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
