"""Minimum scores for a wanted precision, recall or F1 on validation data."""

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pycocotools.cocoeval import COCOeval

from vitdense.errors import OptionError
from vitdense.mm.train.coco_engines import Evaluation, Found
from vitdense.runtime import least

IOU = 0.5  # least IoU of a right object
FEWEST = 50  # least right objects above a minimum score, for a meaningful precision
LEAST_F1 = 0.05  # below this, a detector finds next to nothing


@dataclass(frozen=True)
class Matches:
    """The N objects that a detector found in a data set. An object is right if it matches the truth with IoU 0.5."""

    scores: np.ndarray  # [N], 0 to 1
    labels: np.ndarray  # [N]
    right: np.ndarray  # [N] bool
    truths: np.ndarray  # [classes], number of objects in the truth

    def of_class(self, label: int) -> "Matches":
        own = self.labels == label
        return Matches(self.scores[own], self.labels[own], self.right[own], self.truths[[label]])


def match(evaluated: Evaluation) -> Matches:
    """Which objects are right, as COCO matches them: by score, each object of the truth once.

    Objects that match a crowd are left out.
    """
    truth = evaluated.truth
    if evaluated.kind == "obb":
        return _match_turned(evaluated)
    evaluation = COCOeval(truth.indexed(), truth.detections(Found(evaluated.found.boxes).rows()), "bbox")
    params = evaluation.params
    params.imgIds, params.iouThrs = sorted(evaluated.images), np.array([IOU])
    params.catIds = list(range(1, len(truth.classes) + 1))
    params.areaRng, params.areaRngLbl, params.maxDets = [[0, 1e10]], ["all"], [max(params.maxDets)]
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its steps
        evaluation.evaluate()
    truths, rows = np.zeros(len(params.catIds), np.int64), []
    for cell in filter(None, evaluation.evalImgs):
        label = cell["category_id"] - 1
        truths[label] += np.count_nonzero(~np.asarray(cell["gtIgnore"], bool))
        counts = ~cell["dtIgnore"][0].astype(bool)
        scores, right = np.float64(cell["dtScores"])[counts], cell["dtMatches"][0][counts] > 0
        rows.append(np.stack([scores, np.full(len(scores), label), right], 1))
    scores, labels, right = np.concatenate(rows or [np.zeros((0, 3))]).T
    return Matches(scores, labels.astype(np.int64), right.astype(bool), truths)


def _match_turned(evaluated: Evaluation) -> Matches:
    """`match` of oriented boxes, which pycocotools does not know, by hotcoco."""
    said, boxes = evaluated.made.image_diagnostics(IOU), evaluated.found.boxes
    states = np.array([said["dt_status"].get(row, "") for row in range(1, len(boxes) + 1)])  # "" in crowds
    counted = [one for one in evaluated.truth.dataset["annotations"] if one["id"] in said["gt_status"]]
    labels = np.array([one["category_id"] - 1 for one in counted], int)
    truths = np.bincount(labels, minlength=len(evaluated.truth.classes))
    boxes, right = boxes[states != ""], states[states != ""] == "tp"
    return Matches(boxes[:, 5], boxes[:, 6].astype(np.int64) - 1, right, truths)


def parse_wish(text: str) -> tuple[str, float | None]:
    """``precision=0.9`` as ``("precision", 0.9)``; ``f1`` as ``("f1", None)``. Anything else is an OptionError."""
    name, _, value = text.partition("=")
    try:
        number = float(value) if value else None
    except ValueError:
        number = np.nan
    fits = number is None if name == "f1" else name in ("precision", "recall") and number is not None and 0 < number < 1
    if not fits:
        raise OptionError(
            f"--operating-point: got {text!r}, expected precision=0.9, recall=0.8 or f1, with numbers between 0 and 1"
        )
    return name, number


def find_point(found: Matches, wish: str, classes: Sequence[str], by_class: bool) -> dict[str, Any]:
    """The scores of an operating point, as its file has them; see `vitdense.runtime.OperatingPoint`.

    Args:
        found: Objects found in validation data.
        wish: See `parse_wish`.
        classes: Class names.
        by_class: Whether a class with `FEWEST` right objects that meets the wish gets its own minimum score.

    Raises:
        OptionError: No score meets the wish, or too little was found.
    """
    name, value = parse_wish(wish)
    common = threshold_of(found, name, value)
    if common is None:
        raise OptionError(f"--operating-point {wish}: no score meets it on the validation data; {_reached(found)}")
    thresholds = [common] * len(classes)
    for label in range(len(classes)) if by_class else ():
        own = threshold_of(found.of_class(label), name, value)
        thresholds[label] = common if own is None else own
    right = found.right[found.scores >= least(thresholds, found.labels)]
    shares = {"precision": float(right.mean()), "recall": float(right.sum() / found.truths.sum())}
    return {"wish": wish, "thresholds": dict(zip(classes, thresholds)) if by_class else common, **shares}


def threshold_of(found: Matches, name: str, value: float | None) -> float | None:
    """The minimum score that meets a wish: the lowest for a precision, the highest for a recall, the best for F1.

    None if there is none; see `curve`.
    """
    scores, precision, recall = curve(found)
    f1 = 2 * precision * recall / (precision + recall)
    if not len(scores) or f1.max() < LEAST_F1:
        return None
    if name == "f1":
        return float(scores[f1.argmax()])
    meets = np.flatnonzero((precision if name == "precision" else recall) >= value)
    if not len(meets):
        return None
    return float(scores[meets[-1 if name == "precision" else 0]])


def curve(found: Matches) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Minimum scores with at least `FEWEST` right objects, the highest first, and precision and recall for each."""
    order = np.argsort(-found.scores, kind="stable")
    scores, right = found.scores[order], found.right[order].cumsum()
    last = np.flatnonzero(np.diff(scores, append=-1.0))  # the last of equal scores
    last = last[right[last] >= FEWEST]
    return scores[last], right[last] / (last + 1), right[last] / found.truths.sum()


def _reached(found: Matches) -> str:
    right, number = int(found.right.sum()), int(found.truths.sum())
    _, precision, recall = curve(found)
    if not len(precision):
        return f"{right} of {number} objects are found, expected at least {FEWEST}"
    return (
        f"{right} of {number} objects are found among {len(found.scores)}; the highest precision is "
        f"{precision.max():.3f}, the highest recall {recall.max():.3f}"
    )
