"""CamVid street scenes of 480x360 pixels, 11 classes; training crops of 288 pixels, tests at full size.

Under data_root: ``images/{train,val}/*.jpg`` and ``annotations/{train,val}/*.png``, whose labels are 0 to 10 in the
order of the classes below, and 255 for what is ignored.
"""

_base_ = "seg_data.py"

data_root = "data/camvid/"
metainfo = dict(
    classes=("sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist"),
    palette=[
        [128, 128, 128],
        [128, 0, 0],
        [192, 192, 128],
        [128, 64, 128],
        [60, 40, 222],
        [128, 128, 0],
        [192, 128, 128],
        [64, 64, 128],
        [64, 0, 128],
        [64, 64, 0],
        [0, 128, 192],
    ],
)

train_pipeline = [
    dict(type="vitdense.SeedFromSample"),
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations"),
    dict(type="RandomResize", scale=(480, 360), ratio_range=(0.75, 1.5), keep_ratio=True),
    dict(type="RandomCrop", crop_size=(288, 288), cat_max_ratio=0.75),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PhotoMetricDistortion"),
    dict(type="PackSegInputs"),
]
dataset = dict(
    type="BaseSegDataset",
    data_root=data_root,
    metainfo=metainfo,
    img_suffix=".jpg",
    seg_map_suffix=".png",
    reduce_zero_label=False,
)
train_dataloader = dict(
    batch_size=4,
    dataset=dict(
        dataset,
        data_prefix=dict(img_path="images/train", seg_map_path="annotations/train"),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    dataset=dict(
        dataset,
        data_prefix=dict(img_path="images/val", seg_map_path="annotations/val"),
        test_mode=True,
        pipeline=_base_.test_pipeline,
    ),
)
test_dataloader = val_dataloader
del dataset
