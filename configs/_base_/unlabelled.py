"""The images in a folder and its sub-folders without labels, weakly augmented, for masked pretraining."""

data_root = "data/imagenet/train/"
train_dataloader = dict(
    batch_size=128,
    num_workers=8,
    persistent_workers=True,
    drop_last=True,
    sampler=dict(type="vitdense.SeededEpochSampler", shuffle=True),
    dataset=dict(
        type="vitdense.ImageFolder",
        data_root=data_root,
        pipeline=[
            dict(type="vitdense.SeedFromSample"),
            dict(type="vitdense.LoadImage"),
            dict(type="vitdense.TimmTransform", size=224, interpolation="bicubic", scale=(0.2, 1.0), color_jitter=None),
        ],
    ),
)
