"""UPerNet, Swin-S, 160k iterations: published 47.64 mIoU, 49.47 with flips and six scales, on ADE20K val (81.26 M,
1037.4 G at 512x2048)."""

_base_ = "upernet_swin_t_ade20k.py"

model = dict(
    backbone=dict(
        arch="small",
        init_cfg=dict(checkpoint="swin_small.official_in1k"),
    )
)
