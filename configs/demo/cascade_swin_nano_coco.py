"""The nano Cascade Mask R-CNN on COCO at a short side of about 320 pixels, for one small machine.

vitdense train cascade_swin_nano_coco --cfg-options data_root=/path/to/coco
"""

_base_ = ["../_base_/cascade_swin_nano.py", "../_base_/coco_nano.py", "../_base_/det_nano.py"]
