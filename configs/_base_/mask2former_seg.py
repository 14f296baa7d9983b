"""Mask2Former for semantic segmentation as mmseg ships it, on layers of mmdet, for a Swin of 96 channels.

For another number of classes set `num_classes` of the head and the `class_weight` of its `loss_cls`.
"""

_base_ = []  # before the import: mmengine reads other configs that import in another way
from vitdense.mm.config.load import shipped

model = shipped("mmseg::mask2former/mask2former_r50_8xb2-160k_ade20k-512x512.py").model
model.backbone = dict(type="vitdense.Swin", arch="tiny", window_size=7, drop_path_rate=0.3)
model.decode_head.in_channels = [96, 192, 384, 768]
