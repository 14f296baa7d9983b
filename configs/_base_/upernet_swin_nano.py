"""The Swin authors' UPerNet, small in every part, to train on two CPU cores in minutes."""

_base_ = ["upernet.py", "swin_nano.py"]

width = 32  # channels of both heads
model = dict(
    data_preprocessor=dict(size=(256, 256)),
    backbone=dict(_delete_=True, **_base_.swin_nano),
    decode_head=dict(in_channels=[32, 64, 128, 256], channels=width),
    auxiliary_head=dict(in_channels=128, channels=width),
)
