"""COCO's evaluation by hotcoco, which is much faster, or pycocotools; results agree to 1e-12."""

import io
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
from pycocotools import cocoeval
from pycocotools.coco import COCO

from vitdense.mm.data.classes import category_ids
from vitdense.mm.errors import ConfigError

BOX_ITEMS = ("mAP", "mAP_50", "mAP_75", "mAP_s", "mAP_m", "mAP_l")
RECALL_ITEMS = ("AR@100", "AR@300", "AR@1000", "AR_s@1000", "AR_m@1000", "AR_l@1000")
FIELDS = ("id", "image_id", "category_id", "bbox", "area", "iscrowd")  # keys of annotations that are always read

_evaluated_in: int | None = None  # the process that has hotcoco's threads


class Truth(COCO):
    """The annotations of one file, or of several joined files, numbered for COCO's evaluation.

    That evaluation takes an annotation with id 0 for a missing one, keeps ids in floating point, and orders classes by
    id. So annotations and images are numbered from 1, and categories in the order of the classes.

    Args:
        contents: `Source` (or another key) -> content of an annotation file.
    """

    def __init__(self, contents: Mapping[Hashable, Mapping]) -> None:
        super().__init__()
        self.contents, self.classes = contents, None
        self.images: dict[tuple[Hashable, int], int] = {}  # (file, id) -> number

    def number(self, classes: Sequence[str]) -> None:
        """Number images and annotations of these classes; once, for the same classes."""
        if self.classes == tuple(classes):
            return
        self.classes, self.images, self.anns = tuple(classes), {}, {}
        self.dataset = {"images": [], "annotations": []}
        self.dataset["categories"] = [{"id": i, "name": name} for i, name in enumerate(classes, 1)]
        for source, content in self.contents.items():
            images = {one["id"]: one for one in content["images"]}
            for key in sorted(images):
                self.images[source, key] = number = len(self.images) + 1
                self.dataset["images"].append({**images[key], "id": number})
            numbers = {key: i for i, key in enumerate(category_ids(classes, content["categories"]), 1)}
            annotations = content.get("annotations", ())
            last = {one["id"]: one for one in annotations}  # pycocotools takes the last of equal ids
            for annotation in annotations:
                own = last[annotation["id"]]
                if all(one["image_id"] in images and one["category_id"] in numbers for one in (annotation, own)):
                    given = {"iscrowd": own.get("iscrowd") or 0, "id": len(self.dataset["annotations"]) + 1}
                    given["file_id"], given["image_id"] = own["id"], self.images[source, own["image_id"]]
                    given["category_id"] = numbers[own["category_id"]]
                    self.dataset["annotations"].append({**own, **given})

    def number_images(self, images: Sequence[tuple[Hashable, int]]) -> list[int]:
        """The numbers of images, given as (file, id); a ConfigError if one is not in the file."""
        if unknown := [key for key in images if key not in self.images]:
            raise ConfigError(
                f"metric: {len(unknown)} of {len(images)} images of the data set are not in its annotation file, the "
                f"first with the id {unknown[0][1]}; leave ann_file of the metric out, and it follows the data set"
            )
        return [self.images[key] for key in images]

    def indexed(self) -> "Truth":
        """Build the index that pycocotools needs; returns itself."""
        if not self.anns:
            with redirect_stdout(io.StringIO()):  # pycocotools prints its steps
                self.createIndex()
        return self

    def detections(self, rows: Sequence[Mapping]) -> COCO:
        self.indexed()
        with redirect_stdout(io.StringIO()):
            return super().loadRes(rows)


@dataclass(frozen=True)
class Found:
    """The objects that a detector found, numbered as in the `Truth`.

    `places` are evaluated instead of boxes: N run-length codes under ``segmentation``, or K keypoints (x, y, score) per
    object under ``keypoints``.
    """

    boxes: np.ndarray  # [N, 7] float: image, left, upper, width and height in pixels, score, category
    places: Mapping[str, Sequence] = field(default_factory=dict)

    def rows(self) -> list[dict]:
        """Results as in COCO's files. Masks come without boxes, whose area COCO would take for the object's."""
        columns = {
            "image_id": self.boxes[:, 0].astype(int).tolist(),
            "category_id": self.boxes[:, 6].astype(int).tolist(),
            "score": self.boxes[:, 5].tolist(),
            **(self.places or {"bbox": self.boxes[:, 1:5].tolist()}),
        }
        return [dict(zip(columns, row)) for row in zip(*columns.values())]


@dataclass(frozen=True)
class Evaluation:
    """The result of an engine, -1 where there is no object; `add_up` gives it without `truth`, `found` and `images`."""

    kind: str  # bbox, segm, keypoints or obb
    precision: np.ndarray  # [IoU thresholds T, recalls, classes K, areas, limits M]
    recall: np.ndarray  # [T, K, areas, M]; areas are all, small (not for keypoints), medium, large
    thresholds: np.ndarray  # [T], IoU
    limits: Sequence[int]  # [M], most objects per image
    made: Any  # the engine's ``COCOeval``
    truth: Truth | None = None
    found: Found | None = None
    images: Sequence[int] = ()

    def figures(self, chosen: Sequence[int] | slice = slice(None), ap_limit: int | None = None) -> dict[str, float]:
        """`BOX_ITEMS` and `RECALL_ITEMS`, 0 to 1, as pycocotools defines them, for the classes with indices `chosen`.

        `ap_limit` is the limit for ``mAP``. By default it is the last one, as for the other precisions.
        """
        recall = self.recall[:, chosen]  # [T, K, 4, M]
        limit = self.limits.index(ap_limit) if ap_limit in self.limits else -1
        values = self.precisions("sml", chosen, limit)
        values |= {f"AR@{limit}": mean(recall[..., 0, i]) for i, limit in zip(range(3), (100, 300, 1000))}
        return values | {f"AR_{size}@1000": mean(recall[..., area, -1]) for area, size in enumerate("sml", 1)}

    def precisions(self, sizes: str, chosen: Sequence[int] | slice = slice(None), limit: int = -1) -> dict[str, float]:
        """``mAP``, also at IoU 0.5 and 0.75, and by area for the letters `sizes`; for other arguments see `figures`."""
        precision = self.precision[:, :, chosen]  # [T, recalls, K, areas, M]
        values = {"mAP": mean(precision[..., 0, limit])}
        for name, threshold in (("mAP_50", 0.5), ("mAP_75", 0.75)):
            values[name] = mean(precision[np.isclose(self.thresholds, threshold)][..., 0, -1])
        return values | {f"mAP_{size}": mean(precision[..., area, -1]) for area, size in enumerate(sizes, 1)}


def mean(values: np.ndarray) -> float:
    values = values[values > -1]
    return float(values.mean()) if values.size else -1.0


def evaluate(
    truth: Truth,
    found: Found,
    kind: str,
    *,
    images: Sequence[int],
    engine: str | None = None,
    fields: Sequence[str] = (),
    **params: Any,
) -> Evaluation:
    """Evaluate objects found in numbered images against a truth numbered for these classes.

    See `Evaluation` and `chosen_engine`. `fields` are further keys of annotations, `params` are `thresholds`, `limits`
    and further attributes of pycocotools' `Params`, such as `kpt_oks_sigmas`.
    """
    with redirect_stdout(io.StringIO()):  # the engines print their steps
        made = ENGINES[chosen_engine(engine)](truth, found, kind, fields)
        _set(made.params, truth, imgIds=images, **params)
        made.evaluate()
        return replace(_accumulated(made), truth=truth, found=found, images=images)


def match(
    truth: Truth, found: Found, kind: str, *, images: Sequence[int], fields: Sequence[str] = (), **params: Any
) -> Any:
    """What hotcoco matches in some of the images, for `add_up`; see `evaluate` for the arguments."""
    import hotcoco

    content, rows = _inputs(truth, found, fields, images)
    settings = _set(hotcoco.Params(kind), truth, **params)
    matches = hotcoco.StreamingEval(content["categories"], kind, params=settings)
    matches.update(content["images"], content["annotations"], rows)
    return matches


def add_up(parts: Iterable[Any]) -> Evaluation:
    """The evaluation of all images from `match` of each part of them: to the bit, that of `evaluate`."""
    import hotcoco

    return _accumulated(hotcoco.StreamingEval.merge(parts).finalize())


def _set(params: Any, truth: Truth, thresholds: float | Sequence[float], limits: Sequence[int], **others: Any) -> Any:
    others |= {"maxDets": sorted(limits), "iouThrs": np.atleast_1d(thresholds)}
    for name, value in {**others, "catIds": list(range(1, len(truth.classes) + 1))}.items():
        setattr(params, name, value)
    return params


def _accumulated(made: Any) -> Evaluation:
    made.accumulate()
    params, curves = made.params, [np.asarray(made.eval[name]) for name in ("precision", "recall")]
    return Evaluation(params.iouType, *curves, np.asarray(params.iouThrs), list(params.maxDets), made)


def chosen_engine(name: str | None) -> str:
    """A name of `ENGINES`, by default the first installed one; a ConfigError if it is not installed."""
    installed = [one for one in ENGINES if find_spec(one)]
    if name not in (None, *installed):
        raise ConfigError(f"engine of a COCO metric: got {name!r}, expected one that is installed: {installed}")
    return name or installed[0]


def has_threads() -> bool:
    """Whether this process can use hotcoco, from now on: a fork lacks the threads of its parent, and would wait."""
    global _evaluated_in
    _evaluated_in = _evaluated_in or os.getpid()
    return _evaluated_in == os.getpid()


def _hotcoco(truth: Truth, found: Found, kind: str, fields: Sequence[str]) -> Any:
    if not has_threads():
        return _pycocotools(truth, found, kind, fields)
    import hotcoco

    content, rows = _inputs(truth, found, fields, truth.images.values())
    known = hotcoco.COCO(content)
    return hotcoco.COCOeval(known, known.loadRes(rows), kind)


def _inputs(truth: Truth, found: Found, fields: Sequence[str], images: Iterable[int]) -> tuple[dict, Any]:
    fields, images = (*FIELDS, *fields), {*images}
    content = {
        "images": [_with(("id", "width", "height"), one) for one in truth.dataset["images"] if one["id"] in images],
        "annotations": [_with(fields, one) for one in truth.dataset["annotations"] if one["image_id"] in images],
        "categories": truth.dataset["categories"],
    }
    return content, found.rows() if found.places else found.boxes


def _with(keys: Sequence[str], item: Mapping) -> dict:
    return {key: item[key] for key in keys if key in item}


def _pycocotools(truth: Truth, found: Found, kind: str, fields: Sequence[str]) -> cocoeval.COCOeval:
    return cocoeval.COCOeval(truth.indexed(), truth.detections(found.rows()), kind)


ENGINES: Mapping[str, Callable[..., Any]] = {"hotcoco": _hotcoco, "pycocotools": _pycocotools}
