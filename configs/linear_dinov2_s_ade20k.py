"""A linear head on a frozen DINOv2 ViT-S, ADE20K, 40k iterations: published 44.3 mIoU.

torchrun --nproc-per-node 8 -m vitdense train linear_dinov2_s_ade20k --launcher pytorch --amp bfloat16
"""

_base_ = "_base_/linear.py"

model = dict(
    backbone=dict(
        _delete_=True,
        type="vitdense.ViT",
        arch="dinov2_small",
        pretrain_img_size=518,
        out_indices=(11,),
        out_norm="shared",  # the checkpoint's own
        frozen_stages="all",
        init_cfg=dict(type="Pretrained", checkpoint="dinov2_small.fb_lvd142m"),
    ),
    decode_head=dict(_base_.linear_head, in_channels=384),
)
settings = dict(image_size=518)  # crops of whole patches of 14 pixels; the authors pad 512 to 518
