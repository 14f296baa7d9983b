"""A linear head on a frozen DeiT-Ti, on CamVid: what its features know, in minutes on two CPU cores.

vitdense train linear_deit_t_camvid --cfg-options data_root=/path/to/camvid
"""

_base_ = "upernet_deit_t_camvid.py"

model = dict(
    backbone=dict(frozen_stages="all", out_indices=(11,), out_norm="final"),
    neck=None,
    decode_head=dict(
        _delete_=True,
        type="vitdense.LinearHead",
        in_channels=192,
        num_classes=11,
        dropout_ratio=0.1,
        align_corners=False,
        loss_decode=dict(type="CrossEntropyLoss"),
    ),
    auxiliary_head=None,
)
optim_wrapper = dict(optimizer=dict(lr=1e-3, weight_decay=1e-3))
