"""UPerNet, Swin V2-T with window 8, 160k iterations: no result is published.

torchrun --nproc-per-node 8 -m vitdense train upernet_swinv2_t_ade20k --launcher pytorch
"""

_base_ = "upernet_swin_t_ade20k.py"

model = dict(
    backbone=dict(
        type="vitdense.SwinV2",
        window_size=8,  # as in pretraining at 256 pixels, whose last map was 8x8
        init_cfg=dict(checkpoint="swinv2_tiny_w8.official_in1k"),
    )
)
