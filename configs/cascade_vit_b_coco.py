"""ViTDet: Cascade Mask R-CNN, ViT-B with windows and a simple pyramid, MAE weights, 100 epochs: published 54.0 box AP,
46.7 mask AP on COCO val.

torchrun --nnodes 8 --nproc-per-node 8 tools/train.py configs/cascade_vit_b_coco.py --launcher pytorch --amp
"""

_base_ = ["_base_/cascade_mvitv2.py", "_base_/coco_lsj.py", "_base_/schedule_vitdet.py", "_base_/det_runtime.py"]

norm = dict(type="vitdense.LN2d")
model = dict(
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
        init_cfg=dict(type="Pretrained", checkpoint="timm://vit_base_patch16_224.mae"),
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
# As in training, images are padded to a square.
load, _, *rest = _base_.test_pipeline
test_pipeline = [
    load,
    dict(type="Resize", scale=_base_.image_size, keep_ratio=True),
    dict(type="Pad", size=_base_.image_size, pad_val=dict(img=(128, 128, 128))),
    *rest,
]
del load, _, rest
train_dataloader = dict(batch_size=1)
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
