"""Oriented boxes in COCO annotation files, as four corners, and their faults.

Corners are the polygon of four points of an annotation, as of DOTA and YOLO-OBB, or its straight box turned by
``attributes.rotation``, degrees clockwise around the centre, as CVAT writes.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import cv2
import numpy as np
import torch

from vitdense.extensions.oriented.boxes import corners, enclosing, from_corners, to_le90
from vitdense.mm.data.coco import NUMBER, TOLERANCE, has_box, outline, turned
from vitdense.mm.data.faults import Fault, Faults

LEAST = 1.0  # pixels of area; smaller objects have no direction
FIX = "give each object a polygon of four corners in 'segmentation', or attributes.rotation"
CONVEX = 0.999  # least share of the area around corners that is in their outline
STRAIGHT = 0.99  # share of its straight box that an object covers which is not turned


def quadrilateral(annotation: Mapping[str, Any]) -> list[float] | None:
    """Four corners of an annotation with a box, x and y in turn, as it has them; None where it has none."""
    if turned(annotation):
        x, y, w, h = annotation["bbox"]
        angle = float(annotation["attributes"]["rotation"])
        return corners(torch.tensor([x + w / 2, y + h / 2, w, h, angle], dtype=torch.float64)).flatten().tolist()
    mask = annotation.get("segmentation")
    is_one = isinstance(mask, list) and len(mask) == 1 and isinstance(mask[0], list) and len(mask[0]) == 8
    return [float(v) for v in mask[0]] if is_one else None


def with_corners(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of an annotation file without faults, whose annotations also have ``corners``, and boxes around them.

    ``corners`` are x and y of the four corners of the smallest rectangle around the annotated ones, in pixels; ``obb``
    is the same as COCO's tools have it: centre, width, height, and the angle in radians.
    """
    rows = [dict(one) for one in content.get("annotations", ())]
    given = [(one, own) for one in rows if has_box(one) and (own := quadrilateral(one))]
    boxes = from_corners(torch.tensor([own for _, own in given], dtype=torch.float64).reshape(-1, 4, 2))  # [N, 5]
    places = corners(boxes).flatten(1), to_le90(boxes), enclosing(boxes)  # [N, 8], [N, 5], [N, 4]
    for (one, _), points, box, (left, top, right, bottom) in zip(given, *(x.tolist() for x in places)):
        one |= {"corners": points, "obb": box, "bbox": [left, top, right - left, bottom - top]}
    return {**content, "annotations": rows}


def corner_faults(content: Mapping[str, Sequence[Mapping]], classes: Collection[str]) -> Iterator[Fault]:
    """What is wrong with the corners of objects, in a file without grave faults of `coco.examine`."""
    names = {one["id"]: one["name"] for one in content["categories"]}
    sizes = {one["id"]: (one["width"], one["height"]) for one in content["images"]}
    faults, of, angles, straight, number = Faults(), {"of": "annotations"}, [], 0, 0
    for one in content["annotations"]:
        if names.get(one["category_id"]) not in classes or one.get("iscrowd") or not has_box(one):
            continue
        attributes = one.get("attributes")
        if turned(one):
            angle = attributes["rotation"]
            if not isinstance(angle, NUMBER) or isinstance(angle, bool) or not abs(angle) <= 360:
                faults.add("attributes.rotation is no number of degrees, -360 to 360", one["id"], **of)
                continue
            angles.append(abs(angle))
        points = quadrilateral(one)
        if points is None:
            faults.add("objects have no four corners", one["id"], fix=FIX, **of)
            continue
        points, number = np.array(points).reshape(4, 2), number + 1
        area, around = (outline([part])[1] for part in (points, cv2.convexHull(points.astype(np.float32))))
        if not around >= LEAST:
            faults.add(f"corners have less than {LEAST:.0f} pixel of area", one["id"], **of)
        elif area < CONVEX * around:
            what = "corners are in no order along the outline, for sides cross or bend in"
            faults.add(what, one["id"], fix="list the corners along the outline", **of)
        else:
            straight += area >= STRAIGHT * np.ptp(points, axis=0).prod()
        size = sizes.get(one["image_id"], (math.inf, math.inf))
        if not ((points.mean(0) >= -TOLERANCE) & (points.mean(0) <= np.add(size, TOLERANCE))).all():
            faults.add("the centre of the corners is outside their image", one["id"], grave=False, **of)
    yield from faults
    if angles and max(angles) <= 2 * math.pi:
        what = f"attributes.rotation is at most {max(angles):.2f} everywhere, which looks like radians"
        yield Fault(what, fix="write degrees", grave=False)
    if number and straight == number:
        yield Fault("no object is turned; a recipe for straight boxes serves them", grave=False)
