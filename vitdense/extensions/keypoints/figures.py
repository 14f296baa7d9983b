"""The embedded data set of keypoints: stick figures that face the viewer, drawn on first use.

Left and right look alike, as in people: a mirror swaps them. Backgrounds, colours, postures, rotations and sizes are
random; discs hide some points, and some points are outside the image.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from vitdense.mm.data.shapes import Scene, draw_dataset, write_splits

FIGURE = {
    "name": "figure",
    "keypoints": [
        *("head", "neck", "hip"),
        *(f"{side}_{part}" for part in ("elbow", "hand", "knee", "foot") for side in ("left", "right")),
    ],
    "skeleton": [[1, 2], [2, 3], [2, 4], [4, 6], [2, 5], [5, 7], [3, 8], [8, 10], [3, 9], [9, 11]],
    # From COCO's nose, shoulder, hip, elbow, wrist, knee and ankle.
    "sigmas": [0.026, 0.079, 0.107, 0.072, 0.072, 0.062, 0.062, 0.087, 0.087, 0.089, 0.089],
}
AREA = 0.53  # share of a person's box that the person covers, for OKS without masks
MARGIN = 0.12  # of a box around its points, as a share of their extent
OUTSIDE = 0.05  # share of a figure that may be outside the image
SIXTEENTH = 4  # fractional bits of OpenCV's coordinates


def draw_figures(root: str | Path, **options: Any) -> Path:
    """Draw the data set unless it exists; see `draw_dataset`.

    ``root`` then has ``{train,val}/*.jpg`` and ``annotations/keypoints_{train,val}.json``, as COCO's.
    """
    kinds = [{"id": 1, **FIGURE}]
    writes = partial(write_splits, draw_image=draw_image, annotate=_annotate, name="keypoints", kinds=kinds)
    return draw_dataset(root, draw_into=writes, **options)


def draw_image(rng: np.random.Generator, size: Sequence[int]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Draw one image of this height and width.

    Returns:
        The image, uint8 [H, W, 3] RGB, and the keypoints of each figure, float [K, 3]: x, y, and COCO's flags.
    """
    scene, corner = Scene(rng, size), np.array(size[::-1])
    scene.add_clutter()
    figures, taken = [], np.zeros(size, bool)
    for side in sorted(rng.uniform(60, 190, rng.choice((0, 1, 1, 2, 2, 3, 3, 3))) * scene.scale, reverse=True):
        points = posture(rng) * side + rng.uniform(0, 1, 2) * corner  # [K, 2]
        low, high = points.min(0), points.max(0)
        points += np.clip(low, -OUTSIDE * side, corner + OUTSIDE * side - (high - low)) - low
        (left, upper), (right, lower) = points.min(0).clip(0).astype(int), points.max(0).astype(int) + 1
        if taken[upper:lower, left:right].mean() > 0.1:
            continue
        taken[upper:lower, left:right] = True
        strokes = np.zeros(size, np.uint8)
        for a, b in FIGURE["skeleton"]:
            ends = _fixed(points[a - 1]), _fixed(points[b - 1])
            cv2.line(strokes, *ends, 255, max(2, round(side * rng.uniform(0.05, 0.09))), cv2.LINE_AA, SIXTEENTH)
        _disc(strokes, points[0], side * rng.uniform(0.08, 0.11))
        scene.paint(strokes, scene.class_colour(int(rng.integers(8)), scene.canvas.mean((1, 2))))
        inside = ((points >= 0) & (points <= corner)).all(1)
        figures.append(np.concatenate([points, 2.0 * inside[:, None]], 1))  # [K, 3]
        if rng.random() < 0.3:  # something is in front of it
            centre, radius, hidden = points[rng.integers(len(points))], side * rng.uniform(0.08, 0.14), strokes * 0
            _disc(hidden, centre, radius)
            scene.paint(hidden, scene.canvas.mean((1, 2)))
            for one in figures:
                near = np.linalg.norm(one[:, :2] - centre, axis=1) < radius
                one[near, 2] = np.minimum(one[near, 2], 1)
    return scene.render(), figures


def _fixed(point: np.ndarray) -> tuple[int, int]:
    x, y = np.rint(point * 2**SIXTEENTH).astype(int).tolist()
    return x, y


def _disc(image: np.ndarray, centre: np.ndarray, radius: float) -> None:
    cv2.circle(image, _fixed(centre), int(radius * 2**SIXTEENTH), 255, cv2.FILLED, cv2.LINE_AA, SIXTEENTH)


def posture(rng: np.random.Generator) -> np.ndarray:
    """The points of a figure of height 1 around (0, 0), [K, 2]: x to the right, y down. Its left is on the right."""

    def limb(start: np.ndarray, side: int, first: float, bend: float, length: float) -> list[np.ndarray]:
        angles = np.array([first, first + bend])  # from straight down, outwards
        steps = np.stack([side * np.sin(angles), np.cos(angles)], 1) * length  # [2, 2]
        return [start + steps[0], start + steps.sum(0)]

    neck, hip = np.array([0, -0.27]), np.array([0, 0.05])
    arms = [limb(neck, side, rng.uniform(0.3, 2.4), rng.uniform(-0.3, 1.0), 0.2) for side in (1, -1)]
    legs = [limb(hip, side, rng.uniform(0.1, 1.0), rng.uniform(-0.6, 0.1), 0.23) for side in (1, -1)]
    sides = [part for pair in (zip(*arms), zip(*legs)) for both in pair for part in both]
    points = np.array([[0, -0.42], neck, hip, *sides])  # [K, 2]
    angle = rng.normal(0, 0.25)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    return points @ turn


def _annotate(points: np.ndarray, size: Sequence[int]) -> dict:
    """A figure's COCO annotation, without ids."""
    low, high = points[:, :2].min(0), points[:, :2].max(0)
    margin = MARGIN * (high - low).max()
    low, high = (low - margin).clip(0), np.minimum(high + margin, size[::-1])
    box, keypoints = [*low, *(high - low)], np.where(points[:, 2:] > 0, points, 0).ravel()
    one = {"category_id": 1, "bbox": np.round(box, 2).tolist(), "area": AREA * float(np.prod(high - low))}
    number = int((points[:, 2] > 0).sum())
    return {**one, "keypoints": np.round(keypoints, 2).tolist(), "num_keypoints": number}
