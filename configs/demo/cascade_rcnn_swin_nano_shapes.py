"""The demo on the embedded data set without masks.

python tools/train.py configs/demo/cascade_rcnn_swin_nano_shapes.py
"""

_base_ = ["../_base_/cascade_swin_nano.py", "../_base_/shapes_boxes.py", "../_base_/det_nano.py"]

model = dict(roi_head=dict(mask_roi_extractor=None, mask_head=None))
