"""Cascade Mask R-CNN, Swin V2-T with window 16, 3x: no result is published (85.7 M, 762.7 G at 800x1280).

torchrun --nproc-per-node 8 -m vitdense train cascade_swinv2_t_coco --launcher pytorch
"""

_base_ = "cascade_swin_t_coco.py"

model = dict(
    backbone=dict(
        type="vitdense.SwinV2",
        window_size=16,
        pretrained_window_sizes=(16, 16, 16, 8),  # at 256 pixels the last map was 8x8, and its window with it
        init_cfg=dict(type="Pretrained", checkpoint="swinv2_tiny_w16.official_in1k"),
    )
)
