"""A Cascade Mask R-CNN on a nano Swin and the embedded data set: what `make demo` trains on two CPU cores."""

_base_ = ["../_base_/cascade_swin_nano.py", "../_base_/shapes_instance.py", "../_base_/det_nano.py"]
