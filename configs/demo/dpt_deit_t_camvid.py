"""DPT (Ranftl et al., ICCV 2021) on a frozen DeiT-Ti, on CamVid: minutes on two CPU cores.

vitdense train dpt_deit_t_camvid --cfg-options data_root=/path/to/camvid
"""

_base_ = "upernet_deit_t_camvid.py"

model = dict(
    # The head also reads class tokens. New norms (`out_norm="each"`) would stay new in a frozen trunk.
    backbone=dict(frozen_stages="all", out_norm="final", output_cls_token=True),
    neck=None,
    decode_head=dict(
        _delete_=True,
        type="DPTHead",
        in_channels=(192,) * 4,
        in_index=(0, 1, 2, 3),
        input_transform="multiple_select",
        embed_dims=192,
        post_process_channels=[24, 48, 96, 192],
        channels=64,
        readout_type="project",
        num_classes=11,
        dropout_ratio=0.1,
        norm_cfg=_base_.norm,
        align_corners=False,
        loss_decode=dict(type="CrossEntropyLoss"),
    ),
    auxiliary_head=None,
)
