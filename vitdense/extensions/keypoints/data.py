"""Data sets of keypoints for mmdet."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitdense.extensions.keypoints.categories import PERSON, kinds_of, metainfo_of
from vitdense.extensions.keypoints.figures import FIGURE, draw_figures
from vitdense.mm.data.detection import CocoDataset, NamedCOCO
from vitdense.mm.data.shapes import PALETTE, DrawnOnDemand
from vitdense.mm.registry import DATASETS


class KeypointCOCO(NamedCOCO):
    """Boxes, and in the place of masks keypoints."""

    def index(self, content: Mapping) -> None:
        mirrored = {category["id"]: kinds_of(category).mirrored for category in content["categories"]}
        rows = []
        for one in content.get("annotations", ()):
            own = mirrored.get(one["category_id"], [])
            points = one.get("keypoints") or [0] * (3 * len(own))
            rows.append({**one, "segmentation": {"points": points, "mirrored": own}})
        super().index({**content, "annotations": rows})


@DATASETS.register_module()
class KeypointDataset(CocoDataset):
    """`CocoDataset` of one class with keypoints, as COCO's people have them.

    Its `metainfo` has ``keypoints``, ``skeleton`` and ``sigmas`` too, see `Kinds`: its own, else of the category in the
    annotation file, else of COCO's person. A step `LoadKeypoints` loads them.

    Args:
        drop_doubles: See `CocoDataset`.
        *args, **options: Of mmdet's class.

    Raises:
        ConfigError: The category has no keypoints, or its skeleton or sigmas are those of others.
    """

    COCOAPI = KeypointCOCO
    METAINFO = {"classes": ("person",), "palette": [(220, 20, 60)], **kinds_of(PERSON)._asdict()}  # noqa: RUF012

    def __init__(self, *args: Any, ann_file: str = "", metainfo: dict | None = None, **options: Any) -> None:
        file = Path(options.get("data_root") or "", ann_file)
        if ann_file and file.is_file():
            metainfo = metainfo_of(file, metainfo or {})
        super().__init__(*args, ann_file=ann_file, metainfo=metainfo, **options)


@DATASETS.register_module()
class FiguresDataset(DrawnOnDemand, KeypointDataset):
    """Figures with keypoints of an embedded data set.

    Usual paths under ``data_root``: ``ann_file='annotations/keypoints_train.json'``,
    ``data_prefix=dict(img='train/')``, and the same with ``val``.
    """

    METAINFO = {"classes": ("figure",), "palette": PALETTE[:1], **kinds_of(FIGURE)._asdict()}  # noqa: RUF012
    draws = staticmethod(draw_figures)
