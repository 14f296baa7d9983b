"""Cascade Mask R-CNN with ViTDet's pyramid on DINOv3 ViT-B: ViTDet's recipe, 100 epochs; attention is global.

torchrun --nnodes 8 --nproc-per-node 8 -m vitdense train cascade_dinov3_b_coco --launcher pytorch --amp bfloat16
    --cfg-options model.backbone.frozen_stages=all   # as the authors: the trunk stays as it is

Tuned, as it stands, all 141 M parameters train, the trunk with layer-wise decay; frozen, the 55 M of pyramid and heads.
"""

_base_ = "cascade_vit_b_coco.py"

model = dict(
    backbone=dict(
        _delete_=True,
        type="vitdense.ViT",
        arch="dinov3_base",
        drop_path_rate=0.1,
        out_indices=(11,),
        out_norm="shared",
        with_cp=True,
        init_cfg=dict(type="Pretrained", checkpoint="dinov3_base.fb_lvd1689m"),
    ),
)
