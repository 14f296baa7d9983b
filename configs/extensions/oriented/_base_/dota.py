"""DOTA 1.0 as COCO files, which `vitdense new detection --dota` writes: turned at random, stretched to squares."""

_base_ = "../../../_base_/coco_squares_boxes.py"

data_root = "data/dota/"
load = dict(type="LoadAnnotations", with_bbox=True, box_type="corners")
turns = [
    dict(type="RandomFlip", prob=0.75, direction=["horizontal", "vertical", "diagonal"]),
    dict(type="Rotate", prob=0.5, max_mag=180.0),
]
train_pipeline = []
for step in _base_.train_pipeline:
    train_pipeline += turns if step.type == "RandomFlip" else [load if step.type == "LoadAnnotations" else step]
test_pipeline = [load if step.type == "LoadAnnotations" else step for step in _base_.test_pipeline]
files = dict(
    train=dict(ann_file="oriented_train.json", data_prefix=dict(img="train/images/")),
    val=dict(ann_file="oriented_val.json", data_prefix=dict(img="val/images/")),
)
train_dataloader = dict(
    dataset=dict(type="vitdense.OrientedDataset", data_root=data_root, **files["train"], pipeline=train_pipeline)
)
val_dataloader = dict(
    dataset=dict(type="vitdense.OrientedDataset", data_root=data_root, **files["val"], pipeline=test_pipeline)
)
test_dataloader = val_dataloader
del load, turns, step, files
val_evaluator = dict(type="vitdense.OrientedMetric")
test_evaluator = val_evaluator
