"""Masked pretraining of a DeiT-Ti on any folder of images, for one small machine: 128 pixels, masked patches replaced.

vitdense train masked_deit_t_photos --cfg-options data_root=/path/to/folder
    model.backbone.type=vitdense.StemViT model.backbone.stem=hmlp_ln    # another stem
    model.target.type=mean_colour    # another target
"""

_base_ = ["../_base_/unlabelled.py", "../_base_/pretraining.py"]

model = dict(
    type="vitdense.MaskedImageModel",
    backbone=dict(
        type="vitdense.ViT",
        arch="deit_tiny",
        pretrain_img_size=128,
        drop_path_rate=0.0,
        out_indices=[11],
        out_norm="final",
    ),
    target=dict(type="pixels"),
)
pipeline = _base_.train_dataloader.dataset.pipeline
train_dataloader = dict(
    batch_size=16,
    num_workers=2,
    sampler=dict(_delete_=True, type="vitdense.SeededInfiniteSampler", shuffle=True),
    dataset=dict(
        pipeline=[
            *pipeline[:2],
            dict(pipeline[2], size=128, scale=(0.3, 1.0)),
            dict(type="vitdense.DrawMask", ratio=0.6, cell=16),
        ]
    ),
)
del pipeline
train_cfg = dict(_delete_=True, type="IterBasedTrainLoop", max_iters=1300)
optim_wrapper = dict(optimizer=dict(lr=5e-4), clip_grad=dict(max_norm=3.0))
param_scheduler = [
    dict(type="LinearLR", start_factor=0.01, by_epoch=False, end=100),
    dict(type="CosineAnnealingLR", by_epoch=False, begin=100, end=1300, eta_min_ratio=0.01),
]
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=1300))
log_processor = dict(by_epoch=False)
