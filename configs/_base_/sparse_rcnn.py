"""Sparse R-CNN with 300 proposals as mmdet ships it, for a Swin of 96 channels."""

_base_ = []  # before the import: mmengine reads other configs that import in another way
from vitdense.mm.config.load import shipped

model = shipped("mmdet::sparse_rcnn/sparse-rcnn_r50_fpn_300-proposals_crop-ms-480-800-3x_coco.py").model
model.backbone = dict(type="vitdense.Swin", arch="tiny", window_size=7, drop_path_rate=0.2)
model.neck.in_channels = [96, 192, 384, 768]
for head in model.roi_head.bbox_head:
    head.loss_cls.type = "vitdense.ClampedFocalLoss"  # batches without objects
del head
num_classes = 80  # heads with this number follow the data
