"""The embedded data set for mmseg."""

from mmseg.datasets import BaseSegDataset

from vitdense.mm.data.on_demand import DrawnOnDemand
from vitdense.mm.data.shapes import CLASSES, PALETTE
from vitdense.mm.registry import DATASETS

__all__ = ["ShapesSegDataset"]


@DATASETS.register_module()
class ShapesSegDataset(DrawnOnDemand, BaseSegDataset):
    """Label maps of the embedded data set: class 0 is the background, 255 (pixels of a crowd) is ignored.

    Usual paths under ``data_root``: ``data_prefix=dict(img_path='train', seg_map_path='semantic/train')``, and the same
    with ``val``.
    """

    METAINFO = {"classes": ("background", *CLASSES), "palette": [(0, 0, 0), *PALETTE]}  # noqa: RUF012
