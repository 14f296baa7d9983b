"""RF-DETR, small in every part, on the boxes of the embedded data set.

vitdense train rfdetr_nano_shapes
"""

_base_ = ["../_base_/rfdetr_nano.py", "../_base_/shapes_boxes.py", "../_base_/det_nano.py"]

num_classes = 8  # heads with this number follow the data
model = dict(bbox_head=dict(num_classes=num_classes))
train_dataloader = dict(batch_size=8)
optim_wrapper = dict(optimizer=dict(lr=5e-4), clip_grad=dict(max_norm=1.0))
