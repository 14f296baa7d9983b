"""PMT on a frozen DINOv3 ViT-B, COCO panoptic at 640 pixels, 12 epochs: published 52.8 PQ.

torchrun --nproc-per-node 4 -m vitdense train pmt_dinov3_b_640_coco_panoptic --launcher pytorch --amp
"""

_base_ = "pmt_dinov3_s_640_coco_panoptic.py"

model = dict(
    backbone=dict(arch="dinov3_base", init_cfg=dict(checkpoint="dinov3_base.fb_lvd1689m")),
    panoptic_head=dict(in_channels=[768] * 4, num_heads=12),
)
