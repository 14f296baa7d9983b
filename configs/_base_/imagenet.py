"""ImageNet-1K, or any folder of images: ``data_root/train/<class>/*`` and ``data_root/val/<class>/*``."""

data_root = "data/imagenet/"
load = [dict(type="vitdense.SeedFromSample"), dict(type="vitdense.LoadImage")]
train_pipeline = [
    *load,
    dict(
        type="vitdense.TimmTransform",
        size=224,
        interpolation="bicubic",
        auto_augment="rand-m9-mstd0.5-inc1",
        re_prob=0.25,
        re_mode="pixel",
    ),
]
test_pipeline = [*load, dict(type="vitdense.TimmTransform", size=224, training=False, interpolation="bicubic")]
train_dataloader = dict(
    batch_size=128,
    num_workers=8,
    persistent_workers=True,
    drop_last=True,
    sampler=dict(type="vitdense.SeededEpochSampler", shuffle=True),
    dataset=dict(type="vitdense.ImageFolder", data_root=data_root + "train", labels=True, pipeline=train_pipeline),
)
val_dataloader = dict(
    batch_size=128,
    num_workers=8,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(type="vitdense.ImageFolder", data_root=data_root + "val", labels=True, pipeline=test_pipeline),
)
test_dataloader = val_dataloader
val_evaluator = dict(type="vitdense.Top1")
test_evaluator = val_evaluator
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
del load
