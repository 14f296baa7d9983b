"""Mask R-CNN, MViTv2-T, 36 epochs: published 48.3 box AP, 43.8 mask AP on COCO val (43.68 M, 277.6 G at 800x1280).

torchrun --nproc-per-node 8 -m vitdense train mask_rcnn_mvitv2_t_coco --launcher pytorch --amp
"""

_base_ = ["_base_/mask_rcnn.py", "_base_/coco_instance.py", "_base_/schedule_mvitv2.py", "_base_/det_runtime.py"]

model = dict(
    backbone=dict(
        _delete_=True,
        type="vitdense.MViT",
        arch="v2_tiny",
        drop_path_rate=0.2,
        init_cfg=dict(type="Pretrained", checkpoint="mvitv2_tiny.fb_in1k"),
    ),
    train_cfg=dict(rcnn=dict(assigner=dict(match_low_quality=False))),
)
train_dataloader = dict(batch_size=8, num_workers=4)
