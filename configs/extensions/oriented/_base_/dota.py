"""DOTA 1.0 as COCO files, which `vitdense new detection --dota` writes: turned at random, stretched to squares."""

_base_ = "../../../_base_/coco_squares_boxes.py"

data_root = "data/dota/"
classes = ("baseball-diamond", "basketball-court", "bridge", "ground-track-field", "harbor", "helicopter")
classes += ("large-vehicle", "plane", "roundabout", "ship", "small-vehicle", "soccer-ball-field", "storage-tank")
classes += ("swimming-pool", "tennis-court")
load = dict(type="LoadAnnotations", with_bbox=True, box_type="corners")
turns = [
    dict(type="RandomFlip", prob=0.75, direction=["horizontal", "vertical", "diagonal"]),
    dict(type="Rotate", prob=0.5, max_mag=180.0),
]
train_pipeline = []
for step in _base_.train_pipeline:
    train_pipeline += turns if step.type == "RandomFlip" else [load if step.type == "LoadAnnotations" else step]
test_pipeline = [load if step.type == "LoadAnnotations" else step for step in _base_.test_pipeline]
dataset = dict(type="vitdense.OrientedDataset", data_root=data_root, metainfo=dict(classes=classes))
train_dataloader = dict(
    dataset=dict(
        **dataset,
        ann_file="oriented_train.json",
        data_prefix=dict(img="train/images/"),
        pipeline=train_pipeline,
    )
)
val_dataloader = dict(
    dataset=dict(**dataset, ann_file="oriented_val.json", data_prefix=dict(img="val/images/"), pipeline=test_pipeline)
)
test_dataloader = val_dataloader
del load, turns, step, dataset, classes
val_evaluator = dict(type="vitdense.OrientedMetric")
test_evaluator = val_evaluator
