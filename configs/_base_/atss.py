"""ATSS as mmdet ships it, for a Swin of 96 channels. FPN begins at stride 8, so the backbone has three outputs: a
fourth would have a norm without gradients."""

_base_ = []  # before the import: mmengine reads other configs that import in another way
from vitdense.mm.config.load import shipped

model = shipped("mmdet::atss/atss_r50_fpn_1x_coco.py").model
model.backbone = dict(type="vitdense.Swin", arch="tiny", window_size=7, drop_path_rate=0.2, out_indices=(1, 2, 3))
model.neck.update(in_channels=[192, 384, 768], start_level=0)
num_classes = model.bbox_head.num_classes  # heads with this number follow the data
