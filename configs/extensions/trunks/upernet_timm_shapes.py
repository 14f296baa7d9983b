"""A UPerNet on a trunk of timm and the embedded data set.
Any other name of timm does, with its channels.

vitdense train upernet_timm_shapes
"""

_base_ = "../../demo/upernet_swin_nano_shapes.py"

model = dict(
    backbone=dict(_delete_=True, type="vitdense.TimmTrunk", arch="convnextv2_atto"),
    decode_head=dict(in_channels=[40, 80, 160, 320]),
    auxiliary_head=dict(in_channels=160),
)
