"""Data sets of oriented boxes for mmdet."""

from collections.abc import Mapping

from vitdense.extensions.oriented.labels import with_corners
from vitdense.mm.data.detection import CocoDataset, NamedCOCO
from vitdense.mm.registry import DATASETS


class OrientedCOCO(NamedCOCO):
    """A `NamedCOCO` whose annotations have corners in place of masks."""

    def index(self, content: Mapping) -> None:
        content = with_corners(content)
        rows = [{**one, "segmentation": one.get("corners")} for one in content["annotations"]]
        super().index({**content, "annotations": rows})


@DATASETS.register_module()
class OrientedDataset(CocoDataset):
    """`CocoDataset` of oriented boxes: the ``bbox`` of an instance is eight numbers, x and y of its corners.

    The pipeline loads them with ``dict(type="LoadAnnotations", with_bbox=True, box_type="corners")``. Corners are
    polygons of four points or ``attributes.rotation``; of four points that are no rectangle it is the smallest around
    them. For arguments see `CocoDataset`.
    """

    COCOAPI = OrientedCOCO

    def parse_data_info(self, raw_data_info: dict) -> dict:
        info = super().parse_data_info(raw_data_info)
        info["instances"] = [{**one, "bbox": one.pop("mask")} for one in info["instances"] if "mask" in one]
        return info
