"""ViTDet: Cascade Mask R-CNN, ViT-B with windows and a simple pyramid, MAE weights, 100 epochs: published 54.0 box AP,
46.7 mask AP on COCO val.

torchrun --nnodes 8 --nproc-per-node 8 -m vitdense train cascade_vit_b_coco --launcher pytorch --amp
"""

_base_ = ["_base_/cascade_mvitv2.py", "_base_/coco_lsj.py", "_base_/schedule_vitdet.py", "_base_/det_runtime.py"]

norm = dict(type="vitdense.LN2d", eps=1e-6)
model = dict(
    data_preprocessor=dict(pad_size_divisor=1024),  # squares also in tests, padded with the mean
    backbone=dict(
        _delete_=True,
        type="vitdense.ViT",
        arch="vit_base",
        window_size=14,
        relative_position=True,
        img_size=1024,
        drop_path_rate=0.1,
        out_indices=(11,),
        out_norm="none",
        init_cfg=dict(type="Pretrained", checkpoint="vit_base.mae"),
    ),
    neck=dict(
        _delete_=True,
        type="vitdense.DeconvPyramid",
        in_channels=768,
        design="vitdet",
        out_channels=256,
        num_outs=5,
    ),
    roi_head=dict(
        bbox_head=[dict(head, norm_cfg=norm) for head in _base_.model.roi_head.bbox_head],
        mask_head=dict(norm_cfg=norm),
    ),
)
test_pipeline = [
    dict(step, scale=_base_.image_size) if step.type == "Resize" else step for step in _base_.test_pipeline
]
train_dataloader = dict(batch_size=1)
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
