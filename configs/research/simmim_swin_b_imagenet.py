"""SimMIM pretraining of Swin-B at 192 pixels with windows of 6 for 800 epochs (Xie et al., CVPR 2022).

2048 images a step: 8 GPUs with 256 each; --auto-scale-lr otherwise. Loading resizes the bias tables to other windows.
"""

_base_ = ["../_base_/unlabelled.py", "../_base_/pretraining.py"]

model = dict(
    type="vitdense.MaskedImageModel",
    backbone=dict(type="vitdense.Swin", arch="base", window_size=6, drop_path_rate=0.0, out_indices=[3]),
    target=dict(type="pixels", loss="l1", norm=None),
)
pipeline = _base_.train_dataloader.dataset.pipeline
train_dataloader = dict(
    batch_size=256,
    dataset=dict(
        pipeline=[
            *pipeline[:2],
            dict(pipeline[2], size=192, scale=(0.67, 1.0)),
            dict(type="vitdense.DrawMask", ratio=0.6, cell=32),
        ]
    ),
)
del pipeline
train_cfg = dict(max_epochs=800)
optim_wrapper = dict(optimizer=dict(lr=4e-4), clip_grad=dict(max_norm=5.0))
param_scheduler = [
    dict(type="LinearLR", start_factor=0.01, end=10, convert_to_iter_based=True),
    dict(type="MultiStepLR", milestones=[700], gamma=0.1),
]
auto_scale_lr = dict(enable=False, base_batch_size=2048)
