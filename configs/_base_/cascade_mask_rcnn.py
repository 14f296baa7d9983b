"""Cascade Mask R-CNN with FPN as the Swin authors train it: mmdet's, with 4conv1fc SyncBN box heads and class-specific
GIoU regression on decoded boxes."""

_base_ = []  # before the import: mmengine reads other configs that import in another way
from vitdense.mm.config.load import shipped

model = shipped("mmdet::_base_/models/cascade-mask-rcnn_r50_fpn.py").model
model.backbone = dict(type="vitdense.Swin", arch="tiny", window_size=7, drop_path_rate=0.2)
model.neck.in_channels = [96, 192, 384, 768]
for head in model.roi_head.bbox_head:
    head.update(
        type="ConvFCBBoxHead",
        num_shared_convs=4,
        num_shared_fcs=1,
        conv_out_channels=256,
        reg_class_agnostic=False,
        reg_decoded_bbox=True,
        norm_cfg=dict(type="SyncBN", requires_grad=True),
    )
    head.loss_bbox = dict(type="GIoULoss", loss_weight=10.0)
for head in (*model.roi_head.bbox_head, model.roi_head.mask_head):
    del head["num_classes"]  # heads follow the data
del head
