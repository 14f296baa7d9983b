"""A linear head on a frozen TIPSv2 ViT-B, ADE20K, 40k iterations.

torchrun --nproc-per-node 8 -m vitdense train linear_tipsv2_b_ade20k --launcher pytorch --amp bfloat16
"""

_base_ = "_base_/linear.py"

model = dict(
    data_preprocessor=dict(mean=[0.0, 0.0, 0.0], std=[255.0, 255.0, 255.0]),  # values of 0 to 1, not normalised
    backbone=dict(
        _delete_=True,
        type="vitdense.ViT",
        arch="tipsv2_base",
        pretrain_img_size=448,
        out_indices=(11,),
        out_norm="shared",  # the checkpoint's own
        frozen_stages="all",
        init_cfg=dict(type="Pretrained", checkpoint="tipsv2_base.webli"),
    ),
    decode_head=dict(_base_.linear_head, in_channels=768),
)
settings = dict(image_size=518)  # crops of whole patches of 14 pixels
