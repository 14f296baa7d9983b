"""Panoptic data: COCO's JSON of segments and PNGs of their ids, for mmdet without panopticapi."""

from pathlib import Path
from typing import Any

from mmdet.datasets import CocoPanopticDataset
from mmdet.datasets.transforms import LoadAnnotations
from mmdet.datasets.transforms import LoadPanopticAnnotations as _LoadPanopticAnnotations

from vitdense.mm.data.coco import overview
from vitdense.mm.data.coco_api import NamedPanoptic
from vitdense.mm.data.on_demand import DrawnOnDemand
from vitdense.mm.data.panoptic_files import ids_of_colours
from vitdense.mm.data.shapes import CLASSES, PALETTE
from vitdense.mm.data.shapes_panoptic import STUFF, draw_panoptic_dataset
from vitdense.mm.registry import DATASETS, TRANSFORMS


@DATASETS.register_module()
class PanopticDataset(CocoPanopticDataset):
    """mmdet's `CocoPanopticDataset` for any categories, in any order in the file, and for images of any suffix.

    Labels are the things, then the stuff, as mmdet's heads have them. Without `metainfo` they are those of `ann_file`.
    The PNG of an image has its name, and ``.png``.
    """

    COCOAPI = NamedPanoptic

    def __init__(self, *args: Any, ann_file: str = "", metainfo: dict | None = None, **options: Any) -> None:
        file = Path(options.get("data_root") or "", ann_file)
        classes = (metainfo or {}).get("classes")
        if ann_file and file.is_file():
            things = set(overview(file).things)
            names = tuple(classes or overview(file).things_first)
            parts = {"thing_classes": tuple(n for n in names if n in things)}
            parts |= {"stuff_classes": tuple(n for n in names if n not in things)}
            metainfo = {"classes": parts["thing_classes"] + parts["stuff_classes"], **parts, **(metainfo or {})}
        super().__init__(*args, ann_file=ann_file, metainfo=metainfo, **options)

    def parse_data_info(self, raw_data_info: dict) -> dict:
        """As mmdet's; the path of the PNG of an image of any suffix."""
        info = super().parse_data_info(raw_data_info)
        if info["seg_map_path"] is not None:
            info["seg_map_path"] = str(Path(info["seg_map_path"]).with_suffix(".png"))
        return info


@DATASETS.register_module()
class ShapesPanopticDataset(DrawnOnDemand, PanopticDataset):
    """Segments of the embedded data set: shapes are things, the background is stuff, a crowd is one segment.

    Usual paths under ``data_root``: ``ann_file='panoptic/panoptic_train.json'``, ``data_prefix=dict(img='train/',
    seg='panoptic/train/')``, and the same with ``val``.
    """

    METAINFO = {  # noqa: RUF012
        "classes": (*CLASSES, *STUFF),
        "thing_classes": CLASSES,
        "stuff_classes": STUFF,
        "palette": [*PALETTE, (90, 90, 90)],
    }
    draw_files = staticmethod(draw_panoptic_dataset)


@TRANSFORMS.register_module()
class LoadPanopticAnnotations(_LoadPanopticAnnotations):
    """mmdet's step of this name, which needs panopticapi for three lines."""

    def __init__(self, with_bbox: bool = True, with_mask: bool = True, with_seg: bool = True) -> None:
        self.rgb2id = ids_of_colours
        LoadAnnotations.__init__(self, with_bbox=with_bbox, with_mask=with_mask, with_seg=with_seg)


__all__ = ["LoadPanopticAnnotations", "PanopticDataset", "ShapesPanopticDataset"]
