"""Cascade Mask R-CNN, DeiT-S with ViT-Adapter and windows of 14, 3x: published 51.5 box AP, 44.3 mask AP, 86 M. As the
authors, without their LayerScale, which starts at 1.

torchrun --nproc-per-node 8 -m vitdense train cascade_adapter_deit_s_coco --launcher pytorch --amp
"""

_base_ = ["_base_/cascade_mask_rcnn.py", "_base_/coco_instance.py", "_base_/schedule_3x.py", "_base_/det_runtime.py"]

model = dict(
    backbone=dict(
        _delete_=True,
        type="vitdense.ViTAdapter",
        drop_path_rate=0.2,
        trunk=dict(
            type="vitdense.ViT",
            arch="deit_small",
            window_size=14,
            window_padding="qkv",
            drop_path_rate=0.2,
            init_cfg=dict(type="Pretrained", checkpoint="deit_small.fb_in1k"),
        ),
    ),
    neck=dict(in_channels=[384] * 4),
)
crop = dict(type="RandomCrop", crop_type="absolute_range", crop_size=(1024, 1024))
*steps, pack = _base_.train_pipeline
train_pipeline = [*steps, dict(crop, allow_negative_crop=True), pack]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys=dict(level_embed=dict(decay_mult=0.0), bias=dict(decay_mult=0.0))),
)
