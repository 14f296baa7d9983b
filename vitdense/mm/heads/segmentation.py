"""All heads for mmseg: importing this module registers them."""

from importlib.util import find_spec

from vitdense.mm.heads.linear import LinearHead

__all__ = ["LinearHead"]

if find_spec("mmdet"):  # whose losses and matching they use, as mmseg's own Mask2Former
    from vitdense.mm.heads.mask_transformer.semantic import EoMTSegHead, PMTSegHead

    __all__ += ["EoMTSegHead", "PMTSegHead"]
