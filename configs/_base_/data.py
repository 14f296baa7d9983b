"""What the data sets share: images of a training in seeded order, those of a test one by one."""

train_dataloader = dict(
    batch_size=2,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type="vitdense.SeededInfiniteSampler", shuffle=True),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    drop_last=False,
    sampler=dict(type="DefaultSampler", shuffle=False),
)
test_dataloader = val_dataloader
