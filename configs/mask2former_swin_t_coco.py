"""Mask2Former, instances, Swin-T, 50 epochs: published 45.0 mask AP on COCO val (counted: 47.4 M, 261.8 G at
800x1280).

torchrun --nproc-per-node 8 -m vitdense train mask2former_swin_t_coco --launcher pytorch --amp bfloat16
"""

_base_ = [
    "_base_/mask2former.py",
    "_base_/coco_lsj.py",
    "_base_/schedule_mask2former.py",
    "_base_/det_runtime.py",
]

model = dict(
    backbone=dict(
        init_cfg=dict(type="Pretrained", checkpoint="swin_tiny.official_in1k"),
    )
)
