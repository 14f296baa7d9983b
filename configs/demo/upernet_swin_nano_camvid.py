"""The nano UPerNet from scratch on CamVid, for one small machine.

vitdense train upernet_swin_nano_camvid --cfg-options data_root=/path/to/camvid
"""

_base_ = ["../_base_/upernet_swin_nano.py", "../_base_/camvid.py", "../_base_/seg_nano.py"]

num_classes = 11
head = dict(num_classes=num_classes)
model = dict(data_preprocessor=dict(size=(288, 288)), decode_head=head, auxiliary_head=head)
del head
