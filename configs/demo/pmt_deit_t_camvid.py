"""PMT on a frozen DeiT-Ti, on CamVid: minutes on two CPU cores.

vitdense train pmt_deit_t_camvid --cfg-options data_root=/path/to/camvid
"""

_base_ = "upernet_deit_t_camvid.py"

model = dict(
    backbone=dict(
        _delete_=True,
        type="vitdense.TokenViT",
        arch="deit_tiny",
        out_norm="shared",
        frozen_stages="all",
        init_cfg=dict(type="Pretrained", checkpoint="deit_tiny.fb_in1k"),
    ),
    neck=None,
    decode_head=dict(
        _delete_=True,
        type="vitdense.PMTSegHead",
        in_channels=[192] * 4,
        num_heads=3,
        num_classes=11,
        num_queries=40,
        train_cfg=dict(num_points=4096),
    ),
    auxiliary_head=None,
)
custom_hooks = [
    dict(
        type="vitdense.MaskAnnealingHook",
        starts=(0, 100, 200, 300, 400, 500),
        ends=(200, 300, 400, 500, 600, 800),
    )
]
