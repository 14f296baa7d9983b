"""Cascade R-CNN, Swin-T, 3x: cascade_swin_t_coco.py without masks (counted: 77.7 M, 585.8 G at 800x1280).

torchrun --nproc-per-node 8 -m vitdense train cascade_rcnn_swin_t_coco --launcher pytorch
"""

_base_ = ["_base_/cascade_mask_rcnn.py", "_base_/coco_boxes.py", "_base_/schedule_3x.py", "_base_/det_runtime.py"]

model = dict(
    backbone=dict(
        init_cfg=dict(type="Pretrained", checkpoint="swin_tiny.official_in1k"),
    ),
    roi_head=dict(mask_roi_extractor=None, mask_head=None),
)
