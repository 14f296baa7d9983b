"""Oriented boxes in COCO annotation files, as four corners, and their faults.

Corners are the polygon of four points of an annotation, as of DOTA and YOLO-OBB, or its straight box turned by
``attributes.rotation``, degrees clockwise around the centre, as CVAT writes.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from vitdense.extensions.oriented.boxes import corners, enclosing, from_corners, to_le90
from vitdense.mm.data import coco
from vitdense.mm.data.faults import Fault, Faults

FIX = f"{coco.CORNERS} as a polygon in 'segmentation', or give attributes.rotation"


def quadrilateral(annotation: Mapping[str, Any]) -> list[float] | None:
    """Four corners of an annotation with a box, x and y in turn, as it has them; None where it has none."""
    points, angle, is_turned = coco.four_corners(annotation), coco.rotation_of(annotation), coco.turned(annotation)
    if angle is None or (points and not is_turned):
        return points
    (x, y, w, h), angle = annotation["bbox"], float(angle) if is_turned else 0.0
    return corners(torch.tensor([x + w / 2, y + h / 2, w, h, angle], dtype=torch.float64)).flatten().tolist()


def with_corners(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of an annotation file without faults, whose annotations also have ``corners``, and boxes around them.

    ``corners`` are x and y of the four corners of the smallest rectangle around the annotated ones, in pixels; ``obb``
    is the same as COCO's tools have it: centre, width, height, and the angle in radians.
    """
    rows = [dict(one) for one in content.get("annotations", ())]
    given = [(one, own) for one in rows if coco.has_box(one) and (own := quadrilateral(one))]
    boxes = from_corners(torch.tensor([own for _, own in given], dtype=torch.float64).reshape(-1, 4, 2))  # [N, 5]
    places = corners(boxes).flatten(1), to_le90(boxes), enclosing(boxes)  # [N, 8], [N, 5], [N, 4]
    for (one, _), points, box, (left, top, right, bottom) in zip(given, *(x.tolist() for x in places)):
        one |= {"corners": points, "obb": box, "bbox": [left, top, right - left, bottom - top]}
    return {**content, "annotations": rows}


def corner_faults(content: Mapping[str, Sequence[Mapping]], classes: Collection[str]) -> Iterator[Fault]:
    """What is wrong with the corners of objects, in a file without grave faults of `coco.examine`."""
    names = {one["id"]: one["name"] for one in content["categories"]}
    sizes = {one["id"]: (one["width"], one["height"]) for one in content["images"]}
    faults, of, angles, are_turned = Faults(), {"of": "annotations"}, [], []
    for one in content["annotations"]:
        if names.get(one["category_id"]) not in classes or one.get("iscrowd") or not coco.has_box(one):
            continue
        if coco.turned(one):
            angle = coco.rotation_of(one)
            if not isinstance(angle, coco.NUMBER) or isinstance(angle, bool) or not abs(angle) <= 360:
                faults.add("attributes.rotation is no number of degrees, -360 to 360", one["id"], **of)
                continue
            angles.append(abs(angle))
        points = quadrilateral(one)
        if what := coco.corner_fault(points):
            faults.add(what, one["id"], fix=FIX, **of)
            continue
        are_turned.append(coco.is_turned(points))
        size, middle = sizes.get(one["image_id"], (math.inf, math.inf)), np.reshape(points, (4, 2)).mean(0)
        if not ((middle >= -coco.TOLERANCE) & (middle <= np.add(size, coco.TOLERANCE))).all():
            faults.add("the centre of the corners is outside their image", one["id"], grave=False, **of)
    yield from faults
    if angles and max(angles) <= 2 * math.pi:
        what = f"attributes.rotation is at most {max(angles):.2f} everywhere, which looks like radians"
        yield Fault(what, fix="write degrees", grave=False)
    if are_turned and not any(are_turned):
        yield Fault("no object is turned; a recipe for straight boxes serves them", grave=False)
