"""Necks: plain torch modules."""

from vitdense.necks.bifpn import BiFPN
from vitdense.necks.deconv import DeconvPyramid

__all__ = ["BiFPN", "DeconvPyramid"]
