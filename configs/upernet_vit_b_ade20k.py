"""UPerNet, ViT-B with MAE weights and the deconvolution of BEiT, 160k iterations, tested in windows of 512 pixels: the
recipe of mmseg's MAE config, whose ViT-B (48.13 mIoU, 48.70 with flips and six scales) also has relative positions.

torchrun --nproc-per-node 8 -m vitdense train upernet_vit_b_ade20k --launcher pytorch --amp
"""

_base_ = ["_base_/upernet.py", "_base_/ade20k.py", "_base_/schedule_160k.py", "_base_/seg_runtime.py"]

model = dict(
    backbone=dict(
        _delete_=True,
        type="vitdense.ViT",
        arch="vit_base",
        drop_path_rate=0.1,
        out_indices=(3, 5, 7, 11),
        out_norm="none",
        init_cfg=dict(type="Pretrained", checkpoint="vit_base.mae"),
    ),
    neck=dict(type="vitdense.DeconvPyramid", in_channels=[768] * 4, design="beit"),
    decode_head=dict(in_channels=[768] * 4, channels=768),
    auxiliary_head=dict(in_channels=768),
    test_cfg=dict(mode="slide", crop_size=(512, 512), stride=(341, 341)),
)
optim_wrapper = dict(
    optimizer=dict(lr=1e-4, weight_decay=0.05),
    paramwise_cfg=dict(layer_decay_rate=0.65, bias_decay_mult=0.0),
)
