"""DPT (Ranftl et al., ICCV 2021) on a frozen DINOv3 ViT-B, ADE20K, 160k iterations.

torchrun --nproc-per-node 8 -m vitdense train dpt_dinov3_b_ade20k --launcher pytorch --amp bfloat16
"""

_base_ = ["_base_/upernet.py", "_base_/ade20k.py", "_base_/schedule_160k.py", "_base_/seg_runtime.py"]

model = dict(
    backbone=dict(
        _delete_=True,
        type="vitdense.ViT",
        arch="dinov3_base",
        out_indices=(2, 5, 8, 11),
        out_norm="shared",
        output_cls_token=True,  # the head reads it
        frozen_stages="all",
        init_cfg=dict(type="Pretrained", checkpoint="dinov3_base.fb_lvd1689m"),
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
