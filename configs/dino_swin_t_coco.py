"""DINO, four scales, Swin-T, 12 epochs (counted: 48.3 M, 287.2 G at 800x1280).

torchrun --nproc-per-node 8 -m vitdense train dino_swin_t_coco --launcher pytorch
"""

_base_ = ["_base_/dino.py", "_base_/coco_boxes.py", "_base_/schedule_dino.py", "_base_/det_runtime.py"]

model = dict(
    backbone=dict(
        init_cfg=dict(type="Pretrained", checkpoint="swin_tiny.official_in1k"),
    )
)
train_dataloader = dict(dataset=dict(filter_cfg=dict(filter_empty_gt=False)))
