"""EoMT, DINOv2 ViT-B with registers, COCO panoptic at 640 pixels, 24 epochs: published 51.6 PQ
(counted: 93.66 M, 215.5 G at 640x640).

torchrun --nproc-per-node 4 -m vitdense train eomt_dinov2_b_640_coco_panoptic --launcher pytorch --amp
"""

_base_ = "eomt_dinov2_s_640_coco_panoptic.py"

model = dict(
    backbone=dict(arch="dinov2_base_reg", init_cfg=dict(checkpoint="dinov2_base_reg.fb_lvd142m")),
    panoptic_head=dict(in_channels=[768]),
)
