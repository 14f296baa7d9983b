"""Necks: plain torch modules."""

from vitdense.necks.deconv import DeconvPyramid
from vitdense.necks.global_block import GlobalBlock

__all__ = ["DeconvPyramid", "GlobalBlock"]
