"""The recipe where 0.3 had it, for configs that name this file in `_base_`."""

_base_ = "../extensions/trunks/atss_timm_shapes.py"
