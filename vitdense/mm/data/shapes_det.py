"""The embedded data set for mmdet."""

from vitdense.mm.data.instances import CocoDataset
from vitdense.mm.data.on_demand import DrawnOnDemand
from vitdense.mm.data.shapes import CLASSES, PALETTE
from vitdense.mm.registry import DATASETS

__all__ = ["ShapesDataset"]


@DATASETS.register_module()
class ShapesDataset(DrawnOnDemand, CocoDataset):
    """Boxes and masks of the embedded data set.

    Usual paths under ``data_root``: ``ann_file='annotations/instances_train.json'``,
    ``data_prefix=dict(img='train/', seg='semantic/train/')``, and the same with ``val``.
    """

    METAINFO = {"classes": CLASSES, "palette": PALETTE}  # noqa: RUF012
