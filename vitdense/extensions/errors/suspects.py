"""Labels of objects that look wrong, by what a detector finds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hotcoco
import numpy as np

from vitdense.extensions.errors.objects import RIGHT, Judged, Place, places
from vitdense.mm.data.classes import category_ids
from vitdense.mm.train.coco_engines import Evaluation

DOUBLE = 0.7  # least IoU of two objects of a class that are taken for one
FREE = 0.3  # most IoU with any object where nothing is marked, and least IoU of what is near an object
INSIDE, PART = 0.75, 0.5  # share of a box inside an object from which it may be a part of it, and what that takes away
ALIKE = 0.5  # least share of the smaller of two areas in the larger, for an object that was moved
MOST = 2000  # suspects
CERTAIN = 1.5  # score of an object that is marked twice: no model is needed to see it


@dataclass
class Suspect:
    """A label that looks wrong.

    Attributes:
        image: Number of the image.
        score: How sure; higher is more so.
        boxes: x, y, width and height in pixels: where the object should be, and others that it is about.
        category: 1 + label that the object should have.
        object: The annotation; None where one is missing.
        reason: In words.
    """

    image: int
    score: float
    boxes: Sequence[Sequence[float]]
    category: int
    object: Mapping | None
    reason: str


class Seen:
    """What a detector sees in an image: at objects, and where nothing is marked.

    Scores of the classes of what it finds at one place are added: a detector divides what it is sure of among them.

    Attributes:
        at, near: [G, classes], the highest score of each class at an object (IoU 0.5) and near it.
        free: For each place where nothing is marked, the box, the highest score of each class, and the share of the
            box inside an object: parts of objects are often taken for one.
    """

    def __init__(self, place: Place, boxes: np.ndarray, labels: np.ndarray, classes: int) -> None:
        scores = np.zeros((len(boxes), classes))
        scores[np.arange(len(boxes)), labels] = boxes[:, 5]

        def highest(shared: np.ndarray) -> np.ndarray:
            return (
                np.stack([scores[one].max(0, initial=0) for one in shared.T])
                if shared.size
                else np.zeros((shared.shape[1], classes))
            )

        self.place, self.free = place, []
        self.at, self.near = highest(place.shared >= RIGHT), highest(place.shared >= FREE)
        best, left = place.shared.max(1, initial=0), np.flatnonzero(place.shared.max(1, initial=0) < RIGHT)
        same = hotcoco.mask.iou(boxes[left, 1:5], boxes[left, 1:5], [0] * len(left)) >= RIGHT if len(left) else []
        objects = np.array([one["bbox"] for one in place.objects], float).reshape(-1, 4)
        inside = hotcoco.mask.iou(boxes[:, 1:5], objects, [1] * len(objects)) if place.shared.size else place.shared
        taken = np.zeros(len(left), bool)
        for i, row in enumerate(left):
            if best[row] < FREE and not taken[i]:
                taken |= same[i]
                self.free.append((boxes[row, 1:5].tolist(), scores[left[same[i]]].max(0), inside[row].max(initial=0)))


def suspects(judged: Judged) -> list[Suspect]:
    """The suspects of a detector, the most certain first."""
    boxes, names = judged.boxes, judged.evaluation.truth.classes
    seen = [Seen(x, boxes[x.rows], judged.labels[x.rows], len(names)) for x in places(judged.evaluation, "bbox")]
    marked = [
        (one, at, near) for x in seen for one, at, near in zip(x.place.objects, x.at, x.near) if not one["iscrowd"]
    ]
    labels = np.array([one["category_id"] - 1 for one, *_ in marked], int)
    number = np.maximum(np.bincount(labels, minlength=len(names)), 1)
    taken = np.zeros((len(names), len(names)))  # how often a class is taken for another
    for label, (_, at, _) in zip(labels, marked):
        taken[label, at.argmax()] += at.max() > 0
    taken /= number[:, None]
    sure = np.zeros(len(names))  # how sure the model is of most objects of a class
    for label in set(labels.tolist()):
        sure[label] = np.median([min(near.sum(), 1) for (*_, near), own in zip(marked, labels) if own == label])
    found = [one for x in seen for one in of_image(x, names, taken, sure)]
    return sorted(found, key=lambda one: -one.score)[:MOST]


def of_image(seen: Seen, names: Sequence[str], taken: np.ndarray, sure: np.ndarray) -> list[Suspect]:
    """The suspects of an image; for `taken` and `sure` see `suspects`."""
    found, image = [], seen.place.image
    lost: list[tuple[Mapping, float]] = []  # objects that nothing was found near, and how surely
    kept: list[Mapping] = []
    for one, at, near in zip(seen.place.objects, seen.at, seen.near):
        if one["iscrowd"]:
            continue
        label, box = one["category_id"] - 1, one["bbox"]
        twin = next(
            (x for x in kept if x["category_id"] == one["category_id"] and _iou(x["bbox"], box) >= DOUBLE), None
        )
        kept.append(one)
        if twin:
            reason = f"{names[label]} marked twice, as {twin['file_id']} and {one['file_id']}"
            found.append(Suspect(image, CERTAIN, [twin["bbox"], box], label + 1, one, reason))
            continue
        other = int(np.where(np.arange(len(at)) == label, -1, at).argmax())
        margin = at[other] - at[label]
        if margin > 0:
            reason = f"marked as {names[label]}, found as {names[other]} {at[other]:.2f}"
            score = (margin * (1 - taken[label, other])) ** 0.6
            found.append(Suspect(image, score, [box], other + 1, one, reason))
        if near.sum() < sure[label]:
            lost.append((one, 1 - near.sum()))
    free = [(*one, [x for x in lost if _alike(x[0]["bbox"], one[0])]) for one in seen.free]
    for box, at, inside, moved in free:
        label, score = int(at.argmax()), (min(at.sum(), 1) + at.max()) / 2 * (1 - PART * (inside > INSIDE))
        reason, one = f"not marked: {names[label]} {at.max():.2f}", None
        if moved:
            one, share = max(moved, key=lambda x: x[1] * at[x[0]["category_id"] - 1])
            own = one["category_id"] - 1
            if share > 0.6 and at[own] >= 0.15:
                lost = [x for x in lost if x[0] is not one]
                score += 0.5 * (1 - score) * share * at[own]
                label, reason = own, f"{names[own]} marked elsewhere: found here {at[own]:.2f}, nothing is found there"
            else:
                one = None
        found.append(Suspect(image, score, [box] if one is None else [box, one["bbox"]], label + 1, one, reason))
    for one, share in lost:
        label = one["category_id"] - 1
        reason = f"{names[label]} marked, and nothing is found near it"
        found.append(Suspect(image, 0.5 * share * sure[label] ** 0.5, [one["bbox"]], label + 1, one, reason))
    return found


def as_results(found: Sequence[Suspect], evaluation: Evaluation, paths: Mapping[int, str]) -> list[dict[str, Any]]:
    """Suspects as results of COCO, with the ids of the annotation file, and why each is one."""
    truth = evaluation.truth
    keys = {number: key for key, number in truth.images.items()}
    ids = {file: category_ids(truth.classes, content["categories"]) for file, content in truth.contents.items()}
    return [
        {
            "image_id": keys[one.image][1],
            "category_id": ids[keys[one.image][0]][one.category - 1],
            "bbox": [round(float(x), 2) for x in one.boxes[0]],
            "score": round(min(one.score / CERTAIN, 1), 4),
            "annotation_id": one.object and one.object["file_id"],
            "reason": one.reason,
            "file_name": Path(paths.get(one.image, "")).name,
        }
        for one in found
    ]


def _iou(a: Sequence[float], b: Sequence[float]) -> float:
    return float(hotcoco.mask.iou(np.array([a], float), np.array([b], float), [0])[0, 0])


def _alike(a: Sequence[float], b: Sequence[float]) -> bool:
    areas = sorted((a[2] * a[3], b[2] * b[3]))
    return areas[0] >= ALIKE * areas[1]
