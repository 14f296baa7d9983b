"""PMT on a frozen DINOv3 ViT-S, COCO panoptic at 640 pixels, 12 epochs: published 45.3 PQ.

torchrun --nproc-per-node 4 -m vitdense train pmt_dinov3_s_640_coco_panoptic --launcher pytorch --amp
"""

_base_ = "_base_/pmt_coco.py"

model = dict(
    backbone=dict(
        arch="dinov3_small",
        out_indices=(2, 5, 8, 11),
        init_cfg=dict(type="Pretrained", checkpoint="dinov3_small.fb_lvd1689m"),
    ),
    panoptic_head=dict(in_channels=[384] * 4, num_heads=6),
)
