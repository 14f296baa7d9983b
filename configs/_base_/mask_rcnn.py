"""Mask R-CNN with FPN as mmdet ships it, for a Swin of 96 channels: as in the Swin authors' detection code."""

_base_ = []  # before the import: mmengine reads other configs that import in another way
from vitdense.mm.config.load import shipped

model = shipped("mmdet::_base_/models/mask-rcnn_r50_fpn.py").model
model.backbone = dict(type="vitdense.Swin", arch="tiny", window_size=7, drop_path_rate=0.2)
model.neck.in_channels = [96, 192, 384, 768]
for head in (model.roi_head.bbox_head, model.roi_head.mask_head):
    del head["num_classes"]  # heads follow the data
del head
