"""Norm layers by a name for `norm_cfg`, where mmcv has none."""

from timm.layers import LayerNorm2d

from vitdense.registry import MODELS

# LayerNorm over the channels of every pixel of a map ``[B, C, H, W]``: ViTDet's norm in box and mask heads.
MODELS.register_module(name="LN2d", module=LayerNorm2d)
