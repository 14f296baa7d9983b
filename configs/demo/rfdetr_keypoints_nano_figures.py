"""The recipe where 0.3 had it, for configs that name this file in `_base_`."""

_base_ = "../extensions/keypoints/rfdetr_keypoints_nano_figures.py"
