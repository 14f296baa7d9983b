"""DINO (DETR with improved denoising anchor boxes) of four scales as mmdet ships it, for a Swin of 96 channels."""

_base_ = []  # before the import: mmengine reads other configs that import in another way
from vitdense.mm.config.load import shipped

model = shipped("mmdet::dino/dino-4scale_r50_8xb2-12e_coco.py").model
model.backbone = dict(type="vitdense.Swin", arch="tiny", window_size=7, drop_path_rate=0.2, out_indices=(1, 2, 3))
model.neck.in_channels = [192, 384, 768]
num_classes = model.bbox_head.num_classes  # heads with this number follow the data
