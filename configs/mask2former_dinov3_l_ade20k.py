"""Mask2Former, ViT-Adapter on a frozen DINOv3 ViT-L, ADE20K, 160k iterations.

torchrun --nproc-per-node 8 -m vitdense train mask2former_dinov3_l_ade20k --launcher pytorch --amp bfloat16

The authors of DINOv3 also put a ViT-Adapter around the frozen trunk, in code of their own; this is Chen et al.'s,
at the same taps. Gradients pass through the trunk. Its last norm, which they apply to every tap, is not used.
"""

_base_ = "mask2former_swin_t_ade20k.py"

model = dict(
    backbone=dict(
        _delete_=True,
        type="vitdense.ViTAdapter",
        deform_num_heads=16,
        deform_ratio=0.5,
        vit_feature="each",
        drop_path_rate=0.0,
        with_cp=True,
        trunk=dict(
            type="vitdense.ViT",
            arch="dinov3_large",
            out_indices=(4, 11, 17, 23),
            frozen_stages="all",
            with_cp=True,
            init_cfg=dict(type="Pretrained", checkpoint="dinov3_large.fb_lvd1689m"),
        ),
    ),
    decode_head=dict(in_channels=[1024] * 4),
)
# All that trains is new: no smaller learning rate for the backbone.
no_decay = dict(decay_mult=0.0)
optim_wrapper = dict(
    paramwise_cfg=dict(
        _delete_=True,
        norm_decay_mult=0.0,
        custom_keys=dict(query_embed=no_decay, query_feat=no_decay, level_embed=no_decay),
    )
)
