"""PMT on a frozen DINOv3 ViT-L, COCO panoptic at 640 pixels, 12 epochs: published 56.1 PQ.

torchrun --nproc-per-node 4 -m vitdense train pmt_dinov3_l_640_coco_panoptic --launcher pytorch --amp
"""

_base_ = "_base_/pmt_coco.py"

model = dict(
    backbone=dict(
        arch="dinov3_large",
        out_indices=(5, 11, 17, 23),
        init_cfg=dict(type="Pretrained", checkpoint="dinov3_large.fb_lvd1689m"),
    ),
    panoptic_head=dict(in_channels=[1024] * 4, num_heads=16),
)
