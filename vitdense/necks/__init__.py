"""Necks: plain torch modules."""

from vitdense.necks.bifpn import BiFPN
from vitdense.necks.deconv import DeconvPyramid
from vitdense.necks.global_block import GlobalBlock

__all__ = ["BiFPN", "DeconvPyramid", "GlobalBlock"]
