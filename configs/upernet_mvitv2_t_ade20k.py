"""UPerNet, MViTv2-T, the Swin authors' 160k iterations: no result is published.

torchrun --nproc-per-node 8 -m vitdense train upernet_mvitv2_t_ade20k --launcher pytorch
"""

_base_ = "upernet_swin_t_ade20k.py"

model = dict(
    backbone=dict(
        _delete_=True,
        type="vitdense.MViT",
        arch="v2_tiny",
        drop_path_rate=0.2,  # the authors' for detection
        init_cfg=dict(type="Pretrained", checkpoint="mvitv2_tiny.fb_in1k"),
    )
)
