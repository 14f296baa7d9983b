"""COCO 2017 panoptic, 133 classes, with EoMT's augmentation: images 0.1 to 2 times as large as 640 pixels, cropped and
padded with black. In tests an image fits the size. A rectangle: ``settings = dict(image_size=(480, 864))``.

The annotations are COCO's: ``annotations/panoptic_{train,val}2017.json`` and the folders of PNGs of these names.
"""

_base_ = "data.py"

data_root = "data/coco/"
image_size = (640, 640)

train_pipeline = [
    dict(type="vitdense.SeedFromSample"),
    dict(type="LoadImageFromFile"),
    dict(type="vitdense.LoadPanopticAnnotations"),
    dict(type="RandomFlip", prob=0.5),
    dict(type="RandomResize", scale=image_size, ratio_range=(0.1, 2.0), resize_type="vitdense.FitImage"),
    dict(type="RandomCrop", crop_size=image_size, recompute_bbox=True, allow_negative_crop=True),
    dict(type="Pad", size=image_size, pad_val=dict(img=0, masks=0, seg=255)),
    dict(type="PackDetInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="vitdense.FitImage", scale=image_size),
    dict(type="vitdense.PadImage", size=image_size),
    dict(
        type="PackDetInputs",
        meta_keys=("img_id", "img_path", "ori_shape", "img_shape", "scale_factor", "seg_map_path", "segments_info"),
    ),
]
train_dataloader = dict(
    batch_size=4,
    num_workers=4,
    dataset=dict(
        type="vitdense.PanopticDataset",
        data_root=data_root,
        ann_file="annotations/panoptic_train2017.json",
        data_prefix=dict(img="train2017/", seg="annotations/panoptic_train2017/"),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    dataset=dict(
        type="vitdense.PanopticDataset",
        data_root=data_root,
        ann_file="annotations/panoptic_val2017.json",
        data_prefix=dict(img="val2017/", seg="annotations/panoptic_val2017/"),
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type="vitdense.PanopticMetric")
test_evaluator = val_evaluator
