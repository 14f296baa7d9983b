"""DPT (Ranftl et al., ICCV 2021) on a frozen TIPSv2 ViT-B, ADE20K, 160k iterations.

torchrun --nproc-per-node 8 -m vitdense train dpt_tipsv2_b_ade20k --launcher pytorch --amp bfloat16
"""

_base_ = "dpt_dinov3_b_ade20k.py"

model = dict(
    data_preprocessor=dict(mean=[0.0, 0.0, 0.0], std=[255.0, 255.0, 255.0]),  # values of 0 to 1, not normalised
    backbone=dict(
        arch="tipsv2_base",
        pretrain_img_size=448,
        init_cfg=dict(type="Pretrained", checkpoint="tipsv2_base.webli"),
    ),
)
settings = dict(image_size=518)  # crops of whole patches of 14 pixels
