"""A linear head on a frozen DINOv3 ViT-S, ADE20K, 40k iterations: published 47.0 mIoU.

torchrun --nproc-per-node 8 -m vitdense train linear_dinov3_s_ade20k --launcher pytorch --amp bfloat16
"""

_base_ = "_base_/linear.py"

model = dict(
    backbone=dict(
        _delete_=True,
        type="vitdense.ViT",
        arch="dinov3_small",
        out_indices=(11,),
        out_norm="shared",  # the checkpoint's own
        frozen_stages="all",
        init_cfg=dict(type="Pretrained", checkpoint="dinov3_small.fb_lvd1689m"),
    ),
    decode_head=dict(_base_.linear_head, in_channels=384),
)
