"""Data sets of keypoints for mmdet."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from vitdense.extensions.keypoints.categories import (
    PERSON,
    Kinds,
    kinds_of,
    metainfo_of,
    stated_pairs,
    with_points,
)
from vitdense.extensions.keypoints.figures import FIGURE, draw_figures
from vitdense.mm.config.query import annotation_file
from vitdense.mm.data.detection import CocoDataset, NamedCOCO
from vitdense.mm.data.shapes import PALETTE, DrawnOnDemand
from vitdense.mm.errors import ConfigError
from vitdense.mm.registry import DATASETS


class KeypointCOCO(NamedCOCO):
    """A `NamedCOCO` whose annotations have keypoints in place of masks.

    Args:
        *args: Arguments of the base.
        classes: Classes with keypoints.
        kinds: The keypoints, in the order that points get.
        **options: Options of the base.
    """

    def __init__(self, *args: Any, classes: Sequence[str], kinds: Kinds, **options: Any) -> None:
        self.classes, self.kinds = classes, kinds
        super().__init__(*args, **options)

    def index(self, content: Mapping) -> None:
        content, mirrored = with_points(content, self.classes, self.kinds.keypoints), self.kinds.mirrored
        masks = [{"points": one["keypoints"], "mirrored": mirrored} for one in content["annotations"]]
        rows = [{**one, "segmentation": mask} for one, mask in zip(content["annotations"], masks)]
        super().index({**content, "annotations": rows})


@DATASETS.register_module()
class KeypointDataset(CocoDataset):
    """`CocoDataset` of one class with keypoints, as COCO's people have them.

    Its `metainfo` also has ``keypoints``, ``skeleton``, ``sigmas`` and ``flip_pairs``, see `Kinds`: as given, else from
    the category in the annotation file, else from COCO's person. Points, skeleton, sigmas and pairs of the file are
    reordered by name to the order of ``keypoints``. A pipeline step `LoadKeypoints` loads the points.

    A flip swaps ``flip_pairs``, pairs of names or of indices from 0, or ultralytics' ``flip_idx``, an index for each
    keypoint. Where nobody states them, it swaps left and right by the names.

    Args:
        drop_doubles: See `CocoDataset`.
        *args, **options: Arguments of mmdet's class.

    Raises:
        ConfigError: The category has no keypoints, or a skeleton, sigmas or pairs that do not fit.
    """

    METAINFO = {"classes": ("person",), "palette": [(220, 20, 60)], **kinds_of(PERSON)._asdict()}  # noqa: RUF012

    def __init__(self, *args: Any, ann_file: str = "", metainfo: dict | None = None, **options: Any) -> None:
        file = Path(options.get("data_root") or "", ann_file)
        if ann_file and file.is_file():
            metainfo = metainfo_of(file, metainfo or {})
        about = {**self.METAINFO, **(metainfo or {})}  # a file may be drawn later
        kinds = Kinds(tuple(about["keypoints"]), flip_pairs=stated_pairs(about, about["keypoints"]))
        self.COCOAPI = partial(KeypointCOCO, classes=about["classes"], kinds=kinds)
        super().__init__(*args, ann_file=ann_file, metainfo=metainfo, **options)

    @staticmethod
    def points_of(dataset: Mapping) -> Kinds | None:
        """The keypoints of a data set by its config; None if its file is absent, or has faults, which checks report."""
        file = annotation_file(dataset)
        if not file or not Path(file).is_file():
            return None
        try:
            about = metainfo_of(Path(file), dataset.get("metainfo") or {})
        except ConfigError:
            return None
        return Kinds(**{field: about[field] and tuple(about[field]) for field in Kinds._fields})

    @classmethod
    def follow(cls, dataset: dict, kinds: Kinds, is_learned: bool) -> None:
        """Give a data set's config the keypoints of the model by name; the checks report other names.

        `is_learned`: a data set of the training also gets the skeleton and sigmas.
        """
        own = cls.points_of(dataset)
        if own is None or sorted(own.keypoints) != sorted(kinds.keypoints):
            return
        wanted = kinds if is_learned else own.in_order(kinds.keypoints)
        if own != wanted:
            stated = {key: value for key, value in (dataset.get("metainfo") or {}).items() if key != "flip_idx"}
            dataset["metainfo"] = {**stated, **wanted._asdict()}


@DATASETS.register_module()
class FiguresDataset(DrawnOnDemand, KeypointDataset):
    """The embedded data set of figures with keypoints.

    Usual paths under ``data_root``: ``ann_file='annotations/keypoints_train.json'``,
    ``data_prefix=dict(img='train/')``, and the same with ``val``.
    """

    METAINFO = {"classes": ("figure",), "palette": PALETTE[:1], **kinds_of(FIGURE)._asdict()}  # noqa: RUF012
    draws = staticmethod(draw_figures)
