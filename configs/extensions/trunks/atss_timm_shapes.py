"""ATSS, small in every part, on a trunk of timm and the boxes of the embedded data set.
Any other name of timm does, with its channels.

vitdense train atss_timm_shapes
"""

_base_ = "../../demo/atss_swin_nano_shapes.py"

model = dict(
    backbone=dict(_delete_=True, type="vitdense.TimmTrunk", arch="convnextv2_atto", out_indices=(1, 2, 3)),
    neck=dict(in_channels=[80, 160, 320]),
)
