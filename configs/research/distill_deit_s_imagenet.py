"""DeiT-S with a distillation token, hard distillation from RegNetY-16GF: 81.2 % top-1 (DeiT Table 3).

Recipe: Table 9. 1024 images a step on 8 GPUs; --auto-scale-lr otherwise.
"""

_base_ = ["../_base_/imagenet.py", "../_base_/pretraining.py"]

model = dict(
    type="vitdense.Classifier",
    backbone=dict(
        type="vitdense.ViT",
        arch="deit_small_distilled",
        drop_path_rate=0.1,
        out_indices=[11],
        out_norm="final",
        output_cls_token=True,
    ),
    num_classes=1000,
    distillation="hard",
    teacher=dict(model="regnety_160.deit_in1k", image_size=224),
    mixup=dict(mixup_alpha=0.8, cutmix_alpha=1.0),
)
train_dataloader = dict(sampler=dict(_delete_=True, type="vitdense.SeededRepeatedSampler", repeats=3))
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-3, end=5, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", begin=5, end=300, eta_min=1e-5, convert_to_iter_based=True),
]
auto_scale_lr = dict(enable=False, base_batch_size=1024)
