"""Faster R-CNN, Swin-T, 3x: mask_rcnn_swin_t_coco.py without masks (counted: 45.2 M, 213.6 G at 800x1280).

torchrun --nproc-per-node 8 -m vitdense train faster_rcnn_swin_t_coco --launcher pytorch
"""

_base_ = ["_base_/mask_rcnn.py", "_base_/coco_boxes.py", "_base_/schedule_3x.py", "_base_/det_runtime.py"]

model = dict(
    type="FasterRCNN",
    backbone=dict(
        init_cfg=dict(type="Pretrained", checkpoint="swin_tiny.official_in1k"),
    ),
    roi_head=dict(mask_roi_extractor=None, mask_head=None),
)
