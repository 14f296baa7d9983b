"""COCO instances for mmdet, with labels by name."""

import mmdet.datasets

from vitdense.mm.data.coco_api import NamedCOCO
from vitdense.mm.registry import DATASETS


@DATASETS.register_module()
class CocoDataset(mmdet.datasets.CocoDataset):
    """mmdet's, whose labels have the order of `metainfo.classes`, not that of the file."""

    COCOAPI = NamedCOCO
