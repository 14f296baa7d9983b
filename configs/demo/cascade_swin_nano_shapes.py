"""A Cascade Mask R-CNN on a nano Swin and the embedded data set, for two CPU cores."""

_base_ = ["../_base_/cascade_swin_nano.py", "../_base_/shapes_instance.py", "../_base_/det_nano.py"]

num_classes = 8  # heads with this number follow the data
heads = [dict(head, num_classes=num_classes) for head in _base_.model.roi_head.bbox_head]
model = dict(roi_head=dict(bbox_head=heads, mask_head=dict(num_classes=num_classes)))
del heads
