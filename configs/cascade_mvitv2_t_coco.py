"""Cascade Mask R-CNN, MViTv2-T, 36 epochs: published 52.2 box AP, 45.0 mask AP on COCO val (75.85 M, 699.2 G at
800x1280).

torchrun --nproc-per-node 8 -m vitdense train cascade_mvitv2_t_coco --launcher pytorch --amp
"""

_base_ = [
    "_base_/cascade_mvitv2.py",
    "_base_/coco_instance.py",
    "_base_/schedule_mvitv2.py",
    "_base_/det_runtime.py",
]

model = dict(backbone=dict(init_cfg=dict(type="Pretrained", checkpoint="mvitv2_tiny.fb_in1k")))
train_dataloader = dict(batch_size=8, num_workers=4)
