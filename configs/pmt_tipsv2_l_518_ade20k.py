"""PMT on a frozen TIPSv2 ViT-L, ADE20K at 518 pixels, 16 epochs.

torchrun --nproc-per-node 4 -m vitdense train pmt_tipsv2_l_518_ade20k --launcher pytorch --amp
"""

_base_ = "pmt_dinov3_l_512_ade20k.py"

model = dict(
    data_preprocessor=dict(mean=[0.0, 0.0, 0.0], std=[255.0, 255.0, 255.0]),  # values of 0 to 1, not normalised
    backbone=dict(
        arch="tipsv2_large",
        pretrain_img_size=448,
        init_cfg=dict(type="Pretrained", checkpoint="tipsv2_large.webli"),
    ),
)
settings = dict(image_size=518)  # whole patches of 14 pixels
