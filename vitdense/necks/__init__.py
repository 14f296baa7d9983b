"""Necks for plain backbones, and the norms of their heads, registered under the scope ``vitdense``."""

from vitdense.necks import norms as _norms  # noqa: F401
from vitdense.necks.deconv import DeconvPyramid

__all__ = ["DeconvPyramid"]
