"""All data sets for mmdet: importing this module registers them."""

from vitdense.mm.data.instances import CocoDataset
from vitdense.mm.data.panoptic import PanopticDataset, ShapesPanopticDataset
from vitdense.mm.data.shapes_det import ShapesDataset

__all__ = ["CocoDataset", "PanopticDataset", "ShapesDataset", "ShapesPanopticDataset"]
