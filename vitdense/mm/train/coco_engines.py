"""COCO's evaluation by one of two packages, equal to 1e-12: hotcoco, the faster by far, and pycocotools itself."""

import io
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from pycocotools import cocoeval

from vitdense.mm.errors import ConfigError

if TYPE_CHECKING:  # it imports mmdet, which segmentors do without
    from vitdense.mm.train.truth import Truth

BOX_ITEMS = ("mAP", "mAP_50", "mAP_75", "mAP_s", "mAP_m", "mAP_l")
RECALL_ITEMS = ("AR@100", "AR@300", "AR@1000", "AR_s@1000", "AR_m@1000", "AR_l@1000")
FIELDS = ("id", "image_id", "category_id", "bbox", "area", "iscrowd")  # of annotations, that every evaluation reads

_evaluated_in: int | None = None  # the process that has hotcoco's threads


@dataclass(frozen=True)
class Found:
    """The objects that a detector found, numbered as the `Truth`; `places` are evaluated in place of their boxes: N
    run-length codes under ``segmentation``, or [3 K] numbers, x, y and a score of each, under ``keypoints``."""

    boxes: np.ndarray  # [N, 7] float: image, left, upper, width and height in pixels, score, category
    places: Mapping[str, Sequence] = field(default_factory=dict)

    def rows(self) -> list[dict]:
        """As COCO's files have them; masks without boxes, by whose area COCO would take them for small."""
        columns = {
            "image_id": self.boxes[:, 0].astype(int).tolist(),
            "category_id": self.boxes[:, 6].astype(int).tolist(),
            "score": self.boxes[:, 5].tolist(),
            **(self.places or {"bbox": self.boxes[:, 1:5].tolist()}),
        }
        return [dict(zip(columns, row)) for row in zip(*columns.values())]


@dataclass(frozen=True)
class Evaluation:
    """What an engine measured, -1 where there is no object; `truth`, `found` and `images` are what it evaluated."""

    kind: str  # bbox, segm or keypoints
    precision: np.ndarray  # [IoU thresholds T, recalls, classes K, areas, limits M]
    recall: np.ndarray  # [T, K, areas, M]; areas are all, small (not of keypoints), medium, large
    thresholds: np.ndarray  # [T] of IoU
    limits: Sequence[int]  # [M], how many objects of an image count
    truth: "Truth"
    found: Found
    images: Sequence[int]

    def figures(self, chosen: Sequence[int] | slice = slice(None), ap_limit: int | None = None) -> dict[str, float]:
        """`BOX_ITEMS` and `RECALL_ITEMS`, 0 to 1, as pycocotools defines them, of the classes with indices `chosen`.
        `ap_limit` is the limit of ``mAP``; by default the last one, which the others of precision have."""
        recall = self.recall[:, chosen]  # [T, K, 4, M]
        limit = self.limits.index(ap_limit) if ap_limit in self.limits else -1
        values = self.precisions("sml", chosen, limit)
        values |= {f"AR@{limit}": mean(recall[..., 0, i]) for i, limit in zip(range(3), (100, 300, 1000))}
        return values | {f"AR_{size}@1000": mean(recall[..., area, -1]) for area, size in enumerate("sml", 1)}

    def precisions(self, sizes: str, chosen: Sequence[int] | slice = slice(None), limit: int = -1) -> dict[str, float]:
        """``mAP``, of IoU 0.5 and 0.75, and of areas by their letters; for the other arguments see `figures`."""
        precision = self.precision[:, :, chosen]  # [T, recalls, K, areas, M]
        values = {"mAP": mean(precision[..., 0, limit])}
        for name, threshold in (("mAP_50", 0.5), ("mAP_75", 0.75)):
            values[name] = mean(precision[np.isclose(self.thresholds, threshold)][..., 0, -1])
        return values | {f"mAP_{size}": mean(precision[..., area, -1]) for area, size in enumerate(sizes, 1)}


def mean(values: np.ndarray) -> float:
    """The mean of the values but -1."""
    values = values[values > -1]
    return float(values.mean()) if values.size else -1.0


def evaluate(
    truth: "Truth",
    found: Found,
    kind: str,
    *,
    images: Sequence[int],
    thresholds: float | Sequence[float],
    limits: Sequence[int],
    engine: str | None = None,
    fields: Sequence[str] = (),
    **params: Any,
) -> Evaluation:
    """Evaluate objects found in images, by their numbers; the truth is numbered for the classes that are evaluated. See
    `Evaluation` and `chosen_engine`; `fields` are more keys of annotations that are read, `params` more of pycocotools'
    `Params`, such as `kpt_oks_sigmas`."""
    categories = list(range(1, len(truth.classes) + 1))
    limits, thresholds = sorted(limits), np.atleast_1d(thresholds)  # mmdet takes one number too
    with redirect_stdout(io.StringIO()):  # the engines print their steps
        made = ENGINES[chosen_engine(engine)](truth, found, kind, fields)
        params |= {"catIds": categories, "imgIds": images, "maxDets": limits, "iouThrs": thresholds}
        for name, value in params.items():
            setattr(made.params, name, value)
        made.evaluate()
        made.accumulate()
    precision, recall = np.asarray(made.eval["precision"]), np.asarray(made.eval["recall"])
    return Evaluation(kind, precision, recall, thresholds, limits, truth, found, images)


def chosen_engine(name: str | None) -> str:
    """A name of `ENGINES`, by default the first that is installed; a ConfigError for one that is not."""
    installed = [one for one in ENGINES if find_spec(one)]
    if name not in (None, *installed):
        raise ConfigError(f"engine of a COCO metric: got {name!r}, expected one that is installed: {installed}")
    return name or installed[0]


def _hotcoco(truth: "Truth", found: Found, kind: str, fields: Sequence[str]) -> Any:
    global _evaluated_in
    if _evaluated_in not in (None, os.getpid()):  # a fork, which lacks the threads and would wait for them
        return _pycocotools(truth, found, kind, fields)
    import hotcoco

    _evaluated_in = os.getpid()
    content, fields = truth.dataset, (*FIELDS, *fields)
    known = hotcoco.COCO(
        {
            "images": [_with(("id", "width", "height"), image) for image in content["images"]],
            "annotations": [_with(fields, one) for one in content["annotations"]],
            "categories": content["categories"],
        }
    )
    return hotcoco.COCOeval(known, known.loadRes(found.rows() if found.places else found.boxes), kind)


def _with(keys: Sequence[str], item: Mapping) -> dict:
    return {key: item[key] for key in keys if key in item}


def _pycocotools(truth: "Truth", found: Found, kind: str, fields: Sequence[str]) -> cocoeval.COCOeval:
    return cocoeval.COCOeval(truth.indexed(), truth.detections(found.rows()), kind)


ENGINES: Mapping[str, Callable[..., Any]] = {"hotcoco": _hotcoco, "pycocotools": _pycocotools}
