"""Necks: plain torch modules."""

from vitdense.necks.deconv import DeconvPyramid

__all__ = ["DeconvPyramid"]
