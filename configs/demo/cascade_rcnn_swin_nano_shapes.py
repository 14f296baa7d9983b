"""The demo on the embedded data set without masks.

vitdense train cascade_rcnn_swin_nano_shapes
"""

_base_ = ["../_base_/cascade_swin_nano.py", "../_base_/shapes_boxes.py", "../_base_/det_nano.py"]

num_classes = 8  # heads with this number follow the data
heads = [dict(head, num_classes=num_classes) for head in _base_.model.roi_head.bbox_head]
model = dict(roi_head=dict(bbox_head=heads, mask_roi_extractor=None, mask_head=None))
del heads
