"""Mask2Former for instances as mmdet ships it, for a Swin of 96 channels.

For another number of classes set `num_things_classes` of both heads and the `class_weight` of `loss_cls`.
"""

_base_ = []  # before the import: mmengine reads other configs that import in another way
from vitdense.mm.config.load import shipped

model = shipped("mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco.py").model
model.backbone = dict(type="vitdense.Swin", arch="tiny", window_size=7, drop_path_rate=0.3)
model.panoptic_head.in_channels = [96, 192, 384, 768]
