"""Labels of objects that look wrong, by what a detector finds."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitdense.extensions.errors.objects import RIGHT, Judged, Place, box_ious
from vitdense.mm.data.classes import category_ids

DOUBLE = 0.7  # least IoU of two objects of a class that are taken for one
AT = 0.4  # least IoU of a found object that speaks for or against a marked one: boxes of a nano detector lie roughly
WEAK = 0.3  # score below which nothing is found
DOUBT = 0.1  # score of what a detector may have overlooked
CERTAIN = 1.5  # score of an object that is marked twice: no model is needed to see it
MOST, OF_SUSPECTS = 2000, 40  # suspects, and figures of them


class Suspect(NamedTuple):
    """A label that looks wrong."""

    image: int  # its number
    score: float  # higher is more certain
    boxes: Sequence[Sequence[float]]  # where the object should be, and others that it is about
    category: int  # 1 + label that the object should have
    object: Mapping | None  # the annotation; None where one is missing
    reason: str


def suspects(judged: Judged) -> list[Suspect]:
    """The suspects of a detector, the most certain first."""
    objects = Counter(one["category_id"] for place in judged.places.values() for one in place.objects)
    missed = Counter(one["category_id"] for one in judged.missed)
    recalls = {category: 1 - missed[category] / number for category, number in objects.items()}
    found = [one for image, place in judged.places.items() for one in _of_image(judged, image, place, recalls)]
    return sorted(found, key=lambda one: -one.score)[:MOST]


def _of_image(judged: Judged, image: int, place: Place, recalls: Mapping[int, float]) -> Iterator[Suspect]:
    """The suspects of an image; `recalls` says how often objects of a category are found."""
    names, boxes, labels = judged.names, judged.boxes[place.rows], judged.labels[place.rows]
    marked = [one["bbox"] for one in place.objects]
    categories = np.array([one["category_id"] for one in place.objects], int)
    shared = box_ious(boxes[:, 1:5], marked, [one["iscrowd"] for one in place.objects])  # [D, G]
    inside = box_ious(boxes[:, 1:5], marked, [1] * len(marked))  # as of crowds: the share of the found object
    inside *= categories == labels[:, None] + 1
    overlaps = box_ious(marked, marked)
    scores = np.zeros((len(boxes), len(names)))
    scores[np.arange(len(boxes)), labels] = boxes[:, 5]
    free: list[int] = []  # rows where nothing is marked, one a place
    for row in np.flatnonzero(shared.max(1, initial=0) < AT):
        if box_ious(boxes[free, 1:5], boxes[[row], 1:5]).max(initial=0) < RIGHT:
            free.append(row)
    for i, one in enumerate(place.objects):
        label, box = one["category_id"] - 1, one["bbox"]
        at = np.where(shared[:, i, None] >= AT, scores, 0).max(0, initial=0)  # [classes]
        other, near = int(np.where(np.arange(len(names)) == label, -1, at).argmax()), at.max()
        twins = np.flatnonzero((overlaps[i, :i] >= DOUBLE) & (categories[:i] == label + 1))
        if one["iscrowd"]:
            continue
        if len(twins):
            twin = place.objects[twins[0]]
            reason = f"{names[label]} marked twice, as {twin['file_id']} and {one['file_id']}"
            yield Suspect(image, CERTAIN, [box, twin["bbox"]], label + 1, one, reason)
        elif at[other] > at[label]:
            reason = f"marked as {names[label]}, found as {names[other]} {at[other]:.2f}"
            yield Suspect(image, at[other] / (at[other] + at[label] + DOUBT), [box], other + 1, one, reason)
        elif moved := [row for row in free if labels[row] == label and boxes[row, 5] > near]:
            free.remove(moved[0])
            place_found, score = boxes[moved[0], 1:5].tolist(), boxes[moved[0], 5]
            reason = f"{names[label]} marked elsewhere: found here {score:.2f}, nothing is found there"
            yield Suspect(image, 1 - (1 - score) * (0.5 + near / 2), [place_found, box], label + 1, one, reason)
        elif near < WEAK:
            reason = f"{names[label]} marked, and nothing is found near it"
            yield Suspect(image, 0.6 * (1 - near) * recalls[label + 1], [box], label + 1, one, reason)
    for row in free:
        same = box_ious(boxes[:, 1:5], boxes[[row], 1:5])[:, 0] >= RIGHT  # a detector divides what it is sure of
        score = (boxes[row, 5] + min(scores[same].max(0).sum(), 1)) / 2
        score *= 1 - inside[row].max(initial=0) / 2  # it may be a part of that object
        reason = f"not marked: {names[labels[row]]} {boxes[row, 5]:.2f}"
        yield Suspect(image, score, [boxes[row, 1:5].tolist()], labels[row] + 1, None, reason)


def as_results(found: Sequence[Suspect], judged: Judged) -> list[dict[str, Any]]:
    """Suspects as results of COCO, with the ids of the annotation file, and why each is one."""
    truth = judged.evaluation.truth
    keys = {number: key for key, number in truth.images.items()}
    ids = {file: category_ids(truth.classes, content["categories"]) for file, content in truth.contents.items()}
    return [
        {
            "image_id": keys[one.image][1],
            "category_id": ids[keys[one.image][0]][one.category - 1],
            "bbox": [round(float(x), 2) for x in one.boxes[0]],
            "score": round(float(min(one.score / CERTAIN, 1)), 4),
            "annotation_id": one.object and one.object["file_id"],
            "reason": one.reason,
            "file_name": Path(judged.paths[one.image]).name,
        }
        for one in found
    ]
