"""DINO, four scales, MViTv2-T, 12 epochs: dino_swin_t_coco.py with another backbone (counted: 44.2 M, 298.3 G at
800x1280)."""

_base_ = "dino_swin_t_coco.py"

model = dict(
    backbone=dict(
        _delete_=True,
        type="vitdense.MViT",
        arch="v2_tiny",
        drop_path_rate=0.2,
        out_indices=(1, 2, 3),
        init_cfg=dict(type="Pretrained", checkpoint="mvitv2_tiny.fb_in1k"),
    )
)
