"""All data sets for mmseg: importing this module registers them."""

from vitdense.mm.data.maps import SegDataset
from vitdense.mm.data.shapes_seg import ShapesSegDataset

__all__ = ["SegDataset", "ShapesSegDataset"]
