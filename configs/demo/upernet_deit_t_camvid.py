"""UPerNet, DeiT-Ti and the light deconvolution neck on CamVid: minutes on two CPU cores.

vitdense train upernet_deit_t_camvid --cfg-options data_root=/path/to/camvid
    model.backbone.finetune=attention   # trains attention and positions of the backbone alone
    model.backbone.init_cfg=None        # from scratch
"""

_base_ = ["../_base_/upernet.py", "../_base_/camvid.py", "../_base_/seg_nano.py"]

num_classes = 11
width = 64  # channels of both heads
model = dict(
    # Images to test are padded to whole patches; mmseg cuts the padding off again.
    data_preprocessor=dict(size=(256, 256), test_cfg=dict(size_divisor=32)),
    backbone=dict(
        _delete_=True,
        type="vitdense.ViT",
        arch="deit_tiny",
        drop_path_rate=0.1,
        init_cfg=dict(type="Pretrained", checkpoint="deit_tiny.fb_in1k"),
    ),
    neck=dict(type="vitdense.DeconvPyramid", in_channels=[192] * 4, design="light"),
    decode_head=dict(num_classes=num_classes, in_channels=[192] * 4, channels=width),
    auxiliary_head=dict(num_classes=num_classes, in_channels=192, channels=width),
)
train_pipeline = [
    dict(step, crop_size=(256, 256)) if step.type == "RandomCrop" else step for step in _base_.train_pipeline
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
train_cfg = dict(max_iters=1000, val_interval=1000)
param_scheduler = [_base_.param_scheduler[0], dict(_base_.param_scheduler[1], end=1000)]
head = dict(lr_mult=3.0)  # starts from nothing
optim_wrapper = dict(
    optimizer=dict(lr=3e-4),
    paramwise_cfg=dict(
        custom_keys=dict(
            absolute_pos_embed=dict(decay_mult=0.0),
            tokens=dict(decay_mult=0.0),
            neck=head,
            decode_head=head,
            auxiliary_head=head,
        )
    ),
)
