"""DPT (Ranftl et al., ICCV 2021) on a frozen TIPSv2 ViT-B, ADE20K, 160k iterations.

torchrun --nproc-per-node 8 tools/train.py configs/dpt_tipsv2_b_ade20k.py --launcher pytorch --amp bfloat16
"""

_base_ = ["_base_/upernet.py", "_base_/ade20k.py", "_base_/schedule_160k.py", "_base_/seg_runtime.py"]

model = dict(
    data_preprocessor=dict(mean=[0.0, 0.0, 0.0], std=[255.0, 255.0, 255.0]),  # values of 0 to 1, not normalised
    backbone=dict(
        _delete_=True,
        type="vitdense.ViT",
        arch="tipsv2_base",
        pretrain_img_size=448,
        out_indices=(2, 5, 8, 11),
        out_norm="shared",
        output_cls_token=True,  # the head reads it
        frozen_stages="all",
        init_cfg=dict(type="Pretrained", checkpoint="tipsv2_base.webli"),
    ),
    decode_head=dict(
        _delete_=True,
        type="DPTHead",
        num_classes=_base_.num_classes,
        in_channels=(768,) * 4,
        in_index=(0, 1, 2, 3),
        input_transform="multiple_select",
        embed_dims=768,
        post_process_channels=[96, 192, 384, 768],
        channels=256,
        readout_type="project",
        dropout_ratio=0.1,
        norm_cfg=_base_.norm,
        align_corners=False,
        loss_decode=_base_.loss,
    ),
    auxiliary_head=None,
    test_cfg=dict(mode="slide", crop_size=(512, 512), stride=(341, 341)),
)
settings = dict(image_size=518)  # crops of whole patches of 14 pixels
