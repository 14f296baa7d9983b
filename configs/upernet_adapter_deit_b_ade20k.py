"""UPerNet, DeiT-B with ViT-Adapter, 160k iterations, tested in windows of 512 pixels: published 48.8 mIoU, 49.7 with
flips and six scales, 134 M. As the authors, without their LayerScale, which starts at 1.

torchrun --nproc-per-node 8 -m vitdense train upernet_adapter_deit_b_ade20k --launcher pytorch --amp
"""

_base_ = ["_base_/upernet.py", "_base_/ade20k.py", "_base_/schedule_160k.py", "_base_/seg_runtime.py"]

model = dict(
    backbone=dict(
        _delete_=True,
        type="vitdense.ViTAdapter",
        deform_num_heads=12,
        deform_ratio=0.5,
        vit_feature="each",
        drop_path_rate=0.3,
        trunk=dict(
            type="vitdense.ViT",
            arch="deit_base",
            class_token=False,
            drop_path_rate=0.3,
            init_cfg=dict(type="Pretrained", checkpoint="deit_base.fb_in1k"),
        ),
    ),
    decode_head=dict(in_channels=[768] * 4),
    auxiliary_head=dict(in_channels=768),
    test_cfg=dict(mode="slide", crop_size=(512, 512), stride=(341, 341)),
)
optim_wrapper = dict(
    paramwise_cfg=dict(layer_decay_rate=0.95, bias_decay_mult=0.0, custom_keys={"level_embed": dict(decay_mult=0.0)}),
)
