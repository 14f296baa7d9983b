"""RepPoints V2, Swin-T, 3x: 50.0 box AP in the Swin paper, 45 M, 283 G (counted: 44.9 M, 282.0 G at 800x1280).

torchrun --nproc-per-node 8 -m vitdense train reppoints_v2_swin_t_coco --launcher pytorch
"""

_base_ = ["_base_/reppoints_v2.py", "../_base_/coco_boxes.py", "../_base_/schedule_3x.py", "../_base_/det_runtime.py"]

model = dict(
    backbone=dict(
        init_cfg=dict(type="Pretrained", checkpoint="swin_tiny.official_in1k"),
    ),
)
# Larger images than in the authors' other recipes, and no crops.
train_pipeline = [
    dict(type="vitdense.SeedFromSample"),
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=False),
    dict(type="RandomFlip", prob=0.5),
    dict(type="RandomChoiceResize", scales=[(short, 1333) for short in range(480, 961, 32)], keep_ratio=True),
    dict(type="PackDetInputs"),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
# As in the authors' code, weights of GroupNorm (`gn`) and of the fusion (`weights`) decay: their names lack `norm`.
