"""UPerNet, a ResNet-18 of half the width with one non-local block, from scratch on CamVid, for one small machine.

vitdense train upernet_r18_nonlocal_camvid --cfg-options data_root=/path/to/camvid
vitdense train upernet_r18_nonlocal_camvid --cfg-options model.backbone.attention=None
"""

_base_ = ["../_base_/upernet_swin_nano.py", "../_base_/camvid.py", "../_base_/seg_nano.py"]

num_classes = 11
head = dict(num_classes=num_classes)
model = dict(
    data_preprocessor=dict(size=(288, 288)),
    backbone=dict(
        _delete_=True,
        type="vitdense.NonLocalResNet",
        arch=dict(embed_dims=32, depths=(2, 2, 2, 2), bottleneck=False),
        attention=dict(kind="nonlocal", after=((2, 0),)),  # right before the last block of stride 16
        norm_eval=False,  # norms learn their statistics
    ),
    decode_head=head,
    auxiliary_head=head,
)
del head
