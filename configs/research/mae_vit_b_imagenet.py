"""MAE pretraining of ViT-B for 800 epochs (He et al., CVPR 2022, Table 8); 1600 give 83.6 % after fine-tuning.

4096 images a step: 8 GPUs with 512 each; --auto-scale-lr otherwise. The checkpoint is the init_cfg of any
dict(type="vitdense.ViT", arch="vit_base").
"""

_base_ = ["../_base_/unlabelled.py", "../_base_/pretraining.py"]

model = dict(
    type="vitdense.MaskedImageModel",
    backbone=dict(type="vitdense.ViT", arch="vit_base", drop_path_rate=0.0, out_indices=[11], out_norm="final"),
    target=dict(type="pixels", loss="mse", norm="patch"),
    decoder=dict(embed_dims=512, depth=8, num_heads=16),
)
pipeline = _base_.train_dataloader.dataset.pipeline
train_dataloader = dict(
    batch_size=512, dataset=dict(pipeline=[*pipeline, dict(type="vitdense.DrawMask", ratio=0.75, cell=16)])
)
del pipeline
train_cfg = dict(max_epochs=800)
optim_wrapper = dict(optimizer=dict(lr=2.4e-3, betas=(0.9, 0.95)))
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-4, end=40, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", begin=40, end=800, eta_min=0.0, convert_to_iter_based=True),
]
auto_scale_lr = dict(enable=False, base_batch_size=4096)
