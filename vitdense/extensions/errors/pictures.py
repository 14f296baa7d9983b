"""Figures of a page: truth and prediction side by side, as long as the page has room."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from pycocotools import mask as rle

from vitdense.extensions.page import figure
from vitdense.mm.data.images import read_pixels
from vitdense.mm.errors import ConfigError
from vitdense.results import draw

SIDE = 320  # of one of the pictures of a figure, in pixels
ROOM = 4_300_000  # characters of all figures of a page
AROUND = 1.6  # side of the region that is shown / side of what it is about
LEAST = 0.25  # least side of a region, as a share of the image
GAP = 6  # pixels between pictures


class Drawn(NamedTuple):
    """An object on a picture."""

    box: Sequence[float]  # x, y, width, height in pixels
    text: str
    colour: Sequence[int]
    mask: Mapping | None = None  # a run-length code


class Figures:
    """Makes figures until the page is full, and knows images that are gone.

    Args:
        paths: Number of an image -> its path.
        ids: Number of an image -> its id in the annotation file.
    """

    def __init__(self, paths: Mapping[int, str], ids: Mapping[int, int | str]) -> None:
        self.paths, self.ids, self.room, self.left_out, self.gone = paths, ids, ROOM, Counter(), {}

    def crops(self, image: int, about: Sequence[Sequence[float]], sides: Sequence[Sequence[Drawn]], text: str) -> str:
        """The surroundings of boxes, once for each of `sides`, with its objects; see `add`."""
        pixels = self._read(image)
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
            codes = [one.mask if one.mask and [*one.mask["size"]] == [*pixels.shape[:2]] else None for one in drawn]
            masks = [code and _cut(code, (x, y, right, lower), size) for code in codes]
            views.append(draw.instances(small, boxes, [x.text for x in drawn], [x.colour for x in drawn], masks, 0.3))
        return self.add(image, views, text)

    def add(self, image: int, views: Sequence[np.ndarray], text: str) -> str:
        """Pictures of the same height in a row, as HTML; empty without room."""
        gap = np.full((views[0].shape[0], GAP, 3), 255, np.uint8)
        row = np.concatenate([part for one in views for part in (gap, one)][1:], 1)
        made = figure(f"{text}. {Path(self.paths[image]).name}, image id {self.ids[image]}", row)
        if len(made) > self.room:
            self.left_out["figures"] += 1
            return ""
        self.room -= len(made)
        return made

    def _read(self, image: int) -> np.ndarray | None:
        if self.room < 0:
            return None
        try:
            return read_pixels(self.paths[image])
        except (ConfigError, OSError):
            self.gone[self.paths[image]] = None


def _cut(code: Mapping, part: Sequence[int], size: Sequence[int]) -> np.ndarray:
    x, y, right, lower = part
    inside = np.ascontiguousarray(rle.decode(code)[y:lower, x:right])
    return cv2.resize(inside, size, interpolation=cv2.INTER_NEAREST).view(bool)


def region(size: Sequence[int], boxes: Sequence[Sequence[float]]) -> list[int]:
    """The part of an image of this width and height around boxes: left, upper, right and lower edge in pixels."""
    edges: list[list[int]] = [[], []]
    for axis, side in enumerate(size):
        first = min(max(min(box[axis] for box in boxes), 0), side - 1)
        last = max(min(max(box[axis] + box[axis + 2] for box in boxes), side), first + 1)
        length = min(max(AROUND * (last - first), LEAST * max(size)), side)
        start = min(max((first + last - length) / 2, 0), side - length)
        edges[0].append(int(start))
        edges[1].append(max(int(start + length), int(start) + 1))
    return [*edges[0], *edges[1]]
