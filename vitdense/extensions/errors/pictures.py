"""Figures of a page: truth and prediction side by side, as long as the page has room."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

import numpy as np
from pycocotools import mask as rle

from vitdense.extensions.page import GREY, Box, figure, part_of, region
from vitdense.mm.data.images import picture_of
from vitdense.mm.errors import ConfigError, join_some
from vitdense.results import draw

SIDE = 320  # of one of the pictures of a figure, in pixels
ROOM = 4_300_000  # characters of all figures of a page
FOUND, TRUE, OTHER = (255, 120, 60), (0, 160, 90), (130, 150, 170)  # colours of what a figure is about, and of the rest


class Drawn(NamedTuple):
    """An object on a picture."""

    box: Box
    text: str
    colour: Sequence[int]
    mask: Mapping | Sequence[float] | None = None  # a run-length code, or corners of an oriented box
    points: Sequence | None = None  # K keypoints: x and y in pixels, and whether it is seen, or its score


class Figures:
    """Makes figures until the page is full, and knows images that cannot be read.

    Args:
        paths: Key of an image -> its path.
        called: Key of an image -> what it is called.
    """

    def __init__(self, paths: Mapping, called: Mapping) -> None:
        self.paths, self.called, self.room, self.left_out, self.gone = paths, called, ROOM, 0, {}

    def crops(
        self, image: int, about: Sequence[Box], sides: Sequence[Sequence[Drawn]], pairs: Sequence = ()
    ) -> list[np.ndarray]:
        """The surroundings of boxes, or the image, once for each of `sides`, with its objects; empty without pixels.
        `pairs` of keypoints are joined."""
        pixels = self.read(image)
        if pixels is None:
            return []
        size = pixels.shape[1::-1]
        ends = [np.clip([box[:2], np.add(box[:2], box[2:])], 0, size) for box in about]  # [2, 2]: first and last x, y
        shown = region(size, [(*first, *(last - first)) for first, last in ends])
        scale, views = SIDE / max(shown[2:]), []
        for drawn in sides:
            boxes = [(np.subtract(one.box, (*shown[:2], 0, 0)) * scale).tolist() for one in drawn]
            codes = [_code(one.mask, pixels.shape[:2]) for one in drawn]
            masks = [code and part_of(rle.decode(code), shown, scale, 0).view(bool) for code in codes]
            texts, colours = [one.text for one in drawn], [one.colour for one in drawn]
            view = draw.instances(part_of(pixels, shown, scale, GREY), boxes, texts, colours, masks, 0.3)
            posed = [one for one in drawn if one.points is not None]
            points = [(np.reshape(one.points, (-1, 3)) - (*shown[:2], 0)) * (scale, scale, 1) for one in posed]
            views.append(draw.skeletons(view, points, pairs, [one.colour for one in posed]))
        return views

    def add(self, image: int | str, views: Sequence[np.ndarray], text: str) -> str:
        """Pictures of the same height in a row, as HTML; empty without pictures or room."""
        if not views:
            return ""
        gap = np.full((len(views[0]), 6, 3), 255, np.uint8)
        row = np.concatenate([part for one in views for part in (gap, one)][1:], 1)
        made = figure(f"{text}. {self.called[image]}", row)
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


def _code(mask: Mapping | Sequence[float] | None, size: tuple[int, int]) -> Mapping | None:
    """The run-length code of a mask in an image of this height and width; None without one, or of another size."""
    if isinstance(mask, list):
        return rle.frPyObjects([mask], *size)[0]
    return mask if mask and tuple(mask["size"]) == size else None
