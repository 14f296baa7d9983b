"""HTC as mmdet ships it, without the semantic branch, and with the box heads of the Swin authors: 4conv1fc with SyncBN
and GIoU on decoded boxes. Unlike theirs, one box serves all classes."""

_base_ = []  # before the import: mmengine reads other configs that import in another way
from vitdense.mm.config.load import shipped

model = shipped("mmdet::htc/htc-without-semantic_r50_fpn_1x_coco.py").model
model.data_preprocessor.pad_mask = True
model.backbone = dict(type="vitdense.Swin", arch="tiny", window_size=7, drop_path_rate=0.2)
model.neck.in_channels = [96, 192, 384, 768]
model.roi_head.type = "vitdense.HTCRoIHead"
for head in model.roi_head.bbox_head:
    head.update(
        type="ConvFCBBoxHead",
        num_shared_convs=4,
        num_shared_fcs=1,
        conv_out_channels=256,
        norm_cfg=dict(type="SyncBN", requires_grad=True),
        reg_decoded_bbox=True,
    )
    head.loss_bbox = dict(type="GIoULoss", loss_weight=10.0)
del head
num_classes = 80  # heads with this number follow the data
