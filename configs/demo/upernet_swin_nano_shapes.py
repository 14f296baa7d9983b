"""A UPerNet on a nano Swin and the embedded data set: trains on two CPU cores in minutes.

vitdense train upernet_swin_nano_shapes
"""

_base_ = ["../_base_/upernet_swin_nano.py", "../_base_/shapes_semantic.py", "../_base_/seg_nano.py"]

num_classes = 9  # the background is one
head = dict(num_classes=num_classes)
model = dict(decode_head=head, auxiliary_head=head)
del head
