"""The embedded data set of oriented boxes: shapes at every angle, drawn on first use."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from vitdense.extensions.oriented.boxes import corners
from vitdense.extensions.oriented.data import OrientedDataset
from vitdense.mm.data.coco import outline
from vitdense.mm.data.shapes import PALETTE, DrawnOnDemand, Scene, draw_dataset, write_splits
from vitdense.mm.registry import DATASETS

CIRCLE = [(np.cos(a) / 2, np.sin(a) / 2) for a in np.linspace(0, 2 * np.pi, 48, endpoint=False)]
# Outlines in a box of sides 1 around (0, 0), and the range of width over height.
SHAPES = {
    "bar": ([(-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5)], (2.0, 5.0)),
    "square": ([(-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5)], (1.0, 1.0)),
    "ellipse": (CIRCLE, (1.6, 3.5)),
    "wedge": ([(-0.5, -0.5), (0.5, 0), (-0.5, 0.5)], (1.3, 3.0)),
    "cross": (
        [(x * u, y * v) for x, y, order in ((1, -1, 1), (1, 1, -1), (-1, 1, 1), (-1, -1, -1))
         for u, v in ((0.12, 0.5), (0.12, 0.12), (0.5, 0.12))[::order]],
        (1.3, 2.0),
    ),
}  # fmt: skip
SIXTEENTH = 4  # fractional bits of OpenCV's coordinates


def draw_turned(root: str | Path, **options: Any) -> Path:
    """Draw the data set unless it exists; see `draw_dataset`.

    ``root`` then has ``{train,val}/*.jpg`` and ``annotations/oriented_{train,val}.json``: COCO's, with polygons of four
    corners.
    """
    kinds = [{"id": i, "name": name} for i, name in enumerate(SHAPES, 1)]
    writes = partial(write_splits, draw_image=draw_image, annotate=_annotate, name="oriented", kinds=kinds)
    return draw_dataset(root, draw_into=writes, **options)


def draw_image(rng: np.random.Generator, size: Sequence[int]) -> tuple[np.ndarray, list[tuple[int, np.ndarray]]]:
    """Draw one image of this height and width: uint8 [H, W, 3] RGB, and the label and corners [4, 2] of each object."""
    scene = Scene(rng, size)
    scene.add_clutter()
    objects, taken = [], np.zeros(size, bool)
    for side in sorted(np.exp(rng.uniform(*np.log((20, 90)), rng.integers(2, 13))) * scene.scale, reverse=True):
        label = int(rng.integers(len(SHAPES)))
        outline, ratios = [*SHAPES.values()][label]
        ratio = np.sqrt(rng.uniform(*ratios))
        box = [*(rng.uniform(0, 1, 2) * size[::-1]), side * ratio, side / ratio, rng.uniform(-90, 90)]
        points = corners(torch.tensor(box, dtype=torch.float64)).numpy()  # [4, 2]
        axes = (points[1] - points[0], points[3] - points[0])
        drawn = points.mean(0) + np.array(outline) @ np.array(axes)  # [P, 2]
        strokes = np.zeros(size, np.uint8)
        fixed = np.rint((drawn - 0.5) * 2**SIXTEENTH).astype(np.int32)
        cv2.fillPoly(strokes, [fixed], 255, cv2.LINE_AA, SIXTEENTH)
        inside = (points >= 0).all() and (points <= size[::-1]).all()
        if not inside or (taken & (strokes > 0)).any():
            continue
        taken |= cv2.dilate(strokes, np.ones((5, 5), np.uint8)) > 0
        scene.paint(strokes, scene.class_colour(label, scene.canvas.mean((1, 2))))
        objects.append((label, points))
    return scene.render(), objects


def _annotate(one: tuple[int, np.ndarray], _size: Sequence[int]) -> dict:
    label, points = one
    box, area = outline([points])
    return {"category_id": label + 1, "area": area, "bbox": box, "segmentation": [points.ravel().tolist()]}


@DATASETS.register_module()
class TurnedShapesDataset(DrawnOnDemand, OrientedDataset):
    """The embedded data set of shapes with oriented boxes.

    Usual paths under ``data_root``: ``ann_file='annotations/oriented_train.json'``, ``data_prefix=dict(img='train/')``,
    and the same with ``val``.
    """

    METAINFO = {"classes": tuple(SHAPES), "palette": PALETTE[: len(SHAPES)]}  # noqa: RUF012
    draws = staticmethod(draw_turned)
