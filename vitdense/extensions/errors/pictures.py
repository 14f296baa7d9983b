"""Figures of a page: truth and prediction side by side, as long as the page has room."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from pycocotools import mask as rle

from vitdense.extensions.errors.objects import Judged
from vitdense.extensions.page import figure
from vitdense.mm.data.images import picture_of
from vitdense.mm.errors import ConfigError, join_some
from vitdense.results import draw

SIDE = 320  # of one of the pictures of a figure, in pixels
ROOM = 4_300_000  # characters of all figures of a page
AROUND, LEAST = 1.6, 0.25  # side of a region / side of what it is about; least side, as a share of the image
FOUND, TRUE, OTHER = (255, 120, 60), (0, 160, 90), (130, 150, 170)  # colours of what a figure is about, and of the rest
Box = Sequence[float]  # x, y, width, height in pixels


class Drawn(NamedTuple):
    """An object on a picture."""

    box: Box
    text: str
    colour: Sequence[int]
    mask: Mapping | None = None  # a run-length code


class Figures:
    """Makes figures until the page is full, and knows images that cannot be read.

    Args:
        paths: Key of an image -> its path.
        names: Key of an image -> what it is called, by default its path.
    """

    def __init__(self, paths: Mapping, names: Mapping | None = None) -> None:
        self.paths, self.names, self.room, self.left_out, self.gone = paths, names or {}, ROOM, 0, {}

    def crops(self, image: int, about: Sequence[Box], sides: Sequence[Sequence[Drawn]], text: str) -> str:
        """The surroundings of boxes, or the image, once for each of `sides`, with its objects; see `add`."""
        pixels = self.read(image)
        if pixels is None:
            return ""
        x, y, right, lower = region(pixels.shape[1::-1], about)
        part = pixels[y:lower, x:right]
        scale = SIDE / max(part.shape[:2])
        size = [max(1, round(side * scale)) for side in part.shape[1::-1]]
        small = cv2.resize(part, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
        views = []
        for drawn in sides:
            boxes = [(np.subtract(one.box, (x, y, 0, 0)) * scale).tolist() for one in drawn]
            masks = [_cut(one.mask, pixels, (x, y, right, lower), size) for one in drawn]
            views.append(draw.instances(small, boxes, [x.text for x in drawn], [x.colour for x in drawn], masks, 0.3))
        return self.add(image, views, text)

    def add(self, image: int | str, views: Sequence[np.ndarray], text: str) -> str:
        """Pictures of the same height in a row, as HTML; empty without room."""
        gap = np.full((len(views[0]), 6, 3), 255, np.uint8)
        row = np.concatenate([part for one in views for part in (gap, one)][1:], 1)
        made = figure(f"{text}. {self.names.get(image) or self.paths[image]}", row)
        if len(made) > self.room:
            self.left_out += 1
            return ""
        self.room -= len(made)
        return made

    def read(self, image: int | str) -> np.ndarray | None:
        """The pixels of an image; None if it cannot be read, or without room."""
        try:
            return picture_of(self.paths[image]) if self.room > 0 else None
        except (ConfigError, OSError):
            self.gone[self.paths[image]] = None
            return None

    def notes(self) -> str:
        """What the page does not show, as HTML."""
        gone = f"Images that cannot be read, {len(self.gone)} of those to show: {join_some(self.gone)}."
        full = f"Figures left out, for the page would be too large: {self.left_out}."
        notes = [gone] * bool(self.gone) + [full] * bool(self.left_out)
        return "".join(f"<p>{escape(note)}</p>" for note in notes)


def figures_of(judged: Judged, paths: Mapping[int, str]) -> Figures:
    """The figures of a detector, whose images are called by their names and ids."""
    ids = {number: one for (_, one), number in judged.evaluation.truth.images.items()}
    return Figures(paths, {number: f"{Path(path).name}, image id {ids[number]}" for number, path in paths.items()})


def region(size: Sequence[int], boxes: Sequence[Box]) -> list[int]:
    """The part of an image of this width and height around boxes: left, upper, right and lower edge in pixels."""
    if not len(boxes):
        return [0, 0, *size]
    boxes = np.array(boxes, float)
    first, last = boxes[:, :2].min(0), (boxes[:, :2] + boxes[:, 2:]).max(0)
    half = np.maximum(AROUND * (last - first), LEAST * max(size)) / 2
    start = np.clip((first + last) / 2 - half, 0, np.array(size) - 1).astype(int)
    end = np.clip((first + last) / 2 + half, start + 1, size).astype(int)
    return [*start.tolist(), *end.tolist()]


def _cut(code: Mapping | None, pixels: np.ndarray, part: Sequence[int], size: Sequence[int]) -> np.ndarray | None:
    if code is None or list(code["size"]) != list(pixels.shape[:2]):
        return None
    x, y, right, lower = part
    inside = np.ascontiguousarray(rle.decode(code)[y:lower, x:right])
    return cv2.resize(inside, size, interpolation=cv2.INTER_NEAREST).view(bool)


def sides_of(judged: Judged, image: int, about: int | None = None, row: int | None = None) -> list[list[Drawn]]:
    """The objects of the truth and the found ones of an image.

    What a figure is about is drawn in colour and last: the object with the number `about`, the found object `row`.
    """
    names, place, truth, found = draw.drawable(judged.evaluation.truth.classes), judged.places[image], [], []
    codes = judged.evaluation.found.places.get("segmentation")
    for one in sorted(place.objects, key=lambda one: one["id"] == about):
        mask = judged.evaluation.made.coco_gt.ann_to_rle(one) if judged.evaluation.kind == "segm" else None
        words = names[one["category_id"] - 1] + " (crowd)" * one["iscrowd"]
        truth.append(Drawn(one["bbox"], words, TRUE if one["id"] == about else OTHER, mask))
    for one in sorted(place.rows[judged.chosen[place.rows]][::-1].tolist(), key=lambda one: one == row):
        words = f"{names[judged.labels[one]]} {judged.boxes[one, 5]:.2f}"
        found.append(Drawn(judged.boxes[one, 1:5], words, FOUND if one == row else OTHER, codes and codes[one]))
    return [truth, found]
