"""EoMT on DeiT-Ti, on CamVid: minutes on two CPU cores.

vitdense train eomt_deit_t_camvid --cfg-options data_root=/path/to/camvid
"""

_base_ = "upernet_deit_t_camvid.py"

num_blocks = 3  # that queries take part in
model = dict(
    backbone=dict(
        _delete_=True,
        type="vitdense.JointViT",
        arch="deit_tiny",
        num_joint_blocks=num_blocks,
        init_cfg=dict(type="Pretrained", checkpoint="deit_tiny.fb_in1k"),
    ),
    neck=None,
    decode_head=dict(
        _delete_=True,
        type="vitdense.EoMTSegHead",
        in_channels=[192],
        num_classes=11,
        num_queries=40,
        num_blocks=num_blocks,
        train_cfg=dict(num_points=4096),
    ),
    auxiliary_head=None,
)
custom_hooks = [dict(type="vitdense.MaskAnnealingHook", starts=(100, 300, 500), ends=(300, 500, 800))]
