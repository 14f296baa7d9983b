"""Cascade Mask R-CNN, MViTv2-L of ImageNet-21K, 50 epochs of large-scale jitter: published 55.8 box AP, 48.3 mask AP
on COCO val (265.1 M, 1470.7 G at 800x1280).

torchrun --nproc-per-node 8 -m vitdense train cascade_mvitv2_l_coco --launcher pytorch --amp
"""

_base_ = ["_base_/cascade_mvitv2.py", "_base_/coco_lsj.py", "_base_/schedule_mvitv2.py", "_base_/det_runtime.py"]

model = dict(
    backbone=dict(
        arch="v2_large",
        drop_path_rate=0.5,
        init_cfg=dict(type="Pretrained", checkpoint="mvitv2_large.fb_inw21k"),
    ),
    neck=dict(in_channels=[144, 288, 576, 1152]),
)
train_dataloader = dict(batch_size=8, num_workers=4)
train_cfg = dict(max_epochs=50)
param_scheduler = [
    _base_.param_scheduler[0],
    *(dict(_base_.drop, begin=50 * step / 184375) for step in (163889, 177546)),
]
optim_wrapper = dict(optimizer=dict(lr=1e-4))
