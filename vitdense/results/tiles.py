"""Detection in tiles: cut a large image into tiles, and merge their detections.

A tile sees some objects whole and others cut. A detection is cut if its box comes near an edge of the tile that is
inside of the image. Two detections of one class from different tiles are the same object if

- both are whole, and their IoU is at least `SAME`, as in NMS;
- one is whole, and at least `SAME` of the cut one lies in it;
- both are cut, and their IoU is at least `SAME` in the pixels that both tiles see.

The detection with the highest score is grouped with all that are the same object. If it is cut, the detections that are
the same as these join too, from tile to tile. A group keeps the best detection of every tile. Its object is the whole
detection if there is one, else the union of the pieces, with the highest score. Masks or oriented boxes are compared if
there are such, else boxes.

An object that is smaller than the overlap of tiles minus their margins is seen whole by at least one tile.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import cv2
import numpy as np

from vitdense.errors import OptionError
from vitdense.results.result import Result, as_text
from vitdense.runtime import Output

SAME = 0.5
STEP = 16  # least pixels from one tile to the next: with fewer a photo has a million tiles
MARGIN = 0.02  # distance from a tile's edge within which a box counts as cut, as a share of the side


def detect(
    image: np.ndarray,
    find: Callable[[list[np.ndarray]], Sequence[Output | Sequence]],
    side: int | Sequence[int],
    overlap: float = 0.2,
    names: Sequence[str] = (),
    batch_size: int = 4,
) -> Result:
    """Detect in tiles of an image, by your own function.

    Args:
        image: [H, W, 3].
        find: Takes a list of tiles, [h, w, 3] each, and returns the detections of each, in pixels of the tile. They are
            an `Output`, as from `vitdense.load` and `vitdense.runtime.Program`; or boxes [N, 4], scores [N], labels
            [N], and masks [N, h, w] bool if there are any.
        side, overlap: See `cut`.
        names: Class names for the result.
        batch_size: Most tiles in a call of `find`.

    Returns:
        The objects, the one with the highest score first.

    Raises:
        OptionError: See `cut`; or `find` does not return as many results as it got tiles, or masks of some objects.
    """
    size = image.shape[:2]
    tiles = cut(size, side, overlap)
    parts: list[Result] = []
    for batch in np.split(tiles, range(batch_size, len(tiles), batch_size)):
        found = find([image[y1:y2, x1:x2] for x1, y1, x2, y2 in batch])
        if len(found) != len(batch):
            raise OptionError(f"find: got {len(found)} results, expected one of each of {len(batch)} tiles")
        if any(getattr(one, "keypoints", None) is not None for one in found):
            raise OptionError("find: got keypoints, which tiles do not join; expected boxes, or boxes and masks")
        parts += [_placed(one, tile, size) for one, tile in zip(found, batch)]
    tile_of = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    fields: dict[str, Any] = {}
    for name in ("boxes", "scores", "labels"):
        fields[name] = np.concatenate([getattr(part, name) for part in parts])
    if all(part.corners is not None for part in parts):
        fields["corners"] = np.concatenate([part.corners for part in parts])  # [N, 4, 2]
    has_masks = any(part.rle is not None for part in parts)
    if has_masks and any(part.rle is None and len(part) for part in parts):
        raise OptionError("find: got masks in some tiles, expected masks of all objects or of none")
    masks = [code for part in parts for code in part.rle or []] if has_masks else None
    merged = merge(Result(**fields, rle=masks), tile_of, tiles, size)
    fields = {name: getattr(merged, name) for name in ("boxes", "scores", "labels", "rle", "corners")}
    return Result(**fields, image=image, names=names)


def _placed(found: Output | Sequence, tile: np.ndarray, size: Sequence[int]) -> Result:
    from pycocotools import mask as rle

    found = found if isinstance(found, Output) else Output(*found)
    masks = getattr(found, "rle", None)
    masks = found.masks if masks is None else (code and rle.decode(code) for code in masks)
    codes = None if masks is None else [None if mask is None else place(mask, tile[:2], size) for mask in masks]
    boxes = np.asarray(found.boxes, np.float32).reshape(-1, 4) + np.array([*tile[:2]] * 2, np.float32)
    corners = None if found.corners is None else found.corners + tile[:2].astype(np.float32)
    return Result(boxes, np.asarray(found.scores), np.asarray(found.labels), rle=codes, corners=corners)


def cut(size: Sequence[int], side: int | Sequence[int], overlap: float) -> np.ndarray:
    """The tiles of an image.

    They are evenly spaced: the fewest that overlap by at least `overlap` (up to a pixel). Where the image is smaller
    than a tile, tiles have its height or width. An argument out of range is a ValueError.

    Args:
        size: Height and width of the image in pixels.
        side: Side of square tiles, or their height and width, in pixels.
        overlap: Overlap of neighbours, as a share of a side, above 0. At least `STEP` pixels of a side remain.

    Returns:
        [tiles, 4] int64: left, upper, right and lower edge.
    """
    sides: list = [side] * 2 if isinstance(side, int) or np.ndim(side) == 0 else list(side)
    fits = len(sides) == 2 and all(isinstance(one, (int, np.integer)) for one in sides)
    if not fits or not overlap > 0 or not min(sides) * (1 - overlap) >= STEP:
        raise OptionError(
            f"tiles: got {side!r} and overlap {overlap}, expected a number of pixels and a share over 0, which leave "
            f"{STEP} pixels from a tile to the next"
        )
    tops, lefts = (_starts(length, one, overlap) for length, one in zip(size, sides))
    ends = [np.minimum(np.add(starts, one), length) for starts, one, length in zip((tops, lefts), sides, size)]
    boxes = [(x1, y1, x2, y2) for y1, y2 in zip(tops, ends[0]) for x1, x2 in zip(lefts, ends[1])]
    return np.array(boxes, np.int64)


def _starts(length: int, side: int, overlap: float) -> list[int]:
    steps = max(0, math.ceil((length - side) / (side * (1 - overlap))))
    return np.linspace(0, max(0, length - side), steps + 1).round().astype(int).tolist()


def place(mask: np.ndarray, corner: Sequence[int] | np.ndarray, size: Sequence[int]) -> dict:
    """The mask of a tile, [h, w] of 0 and 1, as COCO's compressed run-length code in an image of `size` (H, W).

    The mask of the image is never in memory as pixels. `corner` is the left and upper edge of the tile.
    """
    from pycocotools import mask as rle

    (x, y), (height, width) = corner, size
    framed = np.pad(mask.T, ((0, 0), (1, 1)))  # [w, h + 2]
    columns, rows = (framed[:, 1:] != framed[:, :-1]).nonzero()  # where a run begins or ends
    places, times = np.unique((x + columns) * height + y + rows, return_counts=True)
    places = places[times == 1]  # a run that ends at the lower edge goes on at the upper one
    counts = np.diff(np.union1d(places, height * width), prepend=0)
    return rle.frPyObjects({"size": [height, width], "counts": counts.tolist()}, height, width)


def merge(found: Result, tile_of: np.ndarray, tiles: np.ndarray, size: Sequence[int]) -> Result:
    """Merge the detections of all tiles; see the module.

    Args:
        found: Detections in pixels of the image. If others have masks, one without a mask is kept as it is, at the end.
        tile_of: Index of each detection's tile, [N].
        tiles: See `cut`.
        size: Height and width of the image in pixels.

    Returns:
        The objects, the one with the highest score first.
    """
    from pycocotools import mask as rle

    alive = np.array([found.rle is None or found.rle[i] is not None for i in range(len(found))], np.bool_)
    order, alone = np.argsort(-found.scores, kind="stable"), np.flatnonzero(~alive)
    compare = _Comparison(found, tile_of, tiles, size)
    kept, boxes, masks, outlines = [], [], [], []
    for seed in order:
        if not alive[seed]:
            continue
        alive[seed], members = False, [seed]
        for member in members:  # the list grows in the loop
            others = order[alive[order] & (found.labels[order] == found.labels[seed])]
            same = others[compare.same(member, others)]
            alive[same] = False
            if compare.whole[seed]:
                break
            for one in same:
                if tile_of[one] not in tile_of[members]:
                    members.append(one)
        members = next(([one] for one in members if compare.whole[one]), members)
        kept.append(seed)
        boxes.append([*found.boxes[members, :2].min(0), *found.boxes[members, 2:].max(0)])
        outlines.append(members)
        if found.rle is not None:
            masks.append(as_text(rle.merge([found.rle[one] for one in members])))
    boxes = np.concatenate([np.array(boxes, found.boxes.dtype).reshape(-1, 4), found.boxes[alone]])
    kept = np.concatenate([np.array(kept, int), alone])
    codes = None if found.rle is None else [*masks, *[None] * len(alone)]
    corners = None
    if found.corners is not None:
        corners = np.array([_around(found.corners[each]) for each in outlines], np.float32).reshape(-1, 4, 2)
    return Result(boxes, found.scores[kept], found.labels[kept], rle=codes, corners=corners)


def _around(corners: np.ndarray) -> np.ndarray:
    """The corners, [4, 2], of the smallest rectangle around parts of an object, [N, 4, 2], its longer side first."""
    if len(corners) == 1:
        return corners[0]
    points = cv2.boxPoints(cv2.minAreaRect(corners.reshape(-1, 2)))
    sides = np.linalg.norm(points[1:3] - points[:2], axis=1)  # [2]
    return np.roll(points, int(sides[0] < sides[1]), axis=0)


class _Comparison:
    def __init__(self, found: Result, tile_of: np.ndarray, tiles: np.ndarray, size: Sequence[int]) -> None:
        self.boxes, self.rle, self.size, self.corners = found.boxes, found.rle, size, found.corners
        self.tile_of, self.tiles = tile_of, tiles[tile_of]  # [N, 4]
        height, width = size
        margin = MARGIN * (tiles[:, 2:] - tiles[:, :2]).max(initial=0)
        inside = self.tiles != (0, 0, width, height)  # edges of tiles inside of the image
        # [N] bool: whether the tile sees the object whole.
        self.whole = ~(inside & (abs(self.tiles - found.boxes) <= margin)).any(1)

    def same(self, one: int, others: np.ndarray) -> np.ndarray:
        """Whether each of `others`, [M] indices, is the object of `one`, [M] bool."""
        lower, upper = _common(self.boxes[one], self.boxes[others])
        near = (self.tile_of[others] != self.tile_of[one]) & (lower < upper).all(1)
        result = np.zeros(len(others), bool)
        for i in near.nonzero()[0]:
            result[i] = self._share(one, others[i]) >= SAME
        return result

    def _share(self, a: int, b: int) -> float:
        from pycocotools import mask as rle

        if self.whole[a] and not self.whole[b]:
            a, b = b, a
        seen = None
        if not self.whole[a] and not self.whole[b]:
            seen = np.concatenate(_common(self.tiles[a], self.tiles[b]))
        of_first = int(self.whole[b] and not self.whole[a])  # share of the cut one's area, as for COCO's crowds
        return rle.iou(self._shape(a, seen), self._shape(b, seen), [of_first])[0, 0]

    def _shape(self, one: int, seen: np.ndarray | None) -> list[dict] | np.ndarray:
        """A detection as pycocotools compares it: its mask, or else its box, in the pixels of the box `seen`."""
        from pycocotools import mask as rle

        if self.corners is not None:
            shape = rle.frPyObjects([self.corners[one].astype(float).ravel().tolist()], *self.size)
        elif self.rle is None:
            box = self.boxes[one] if seen is None else np.concatenate(_common(self.boxes[one], seen))
            return _sides(box)
        else:
            shape = [self.rle[one]]
        if seen is None:
            return shape
        (window,) = rle.frPyObjects(_sides(seen), *self.size)
        return [rle.merge([*shape, window], intersect=True)]


def _common(box: np.ndarray, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.maximum(box[:2], boxes[..., :2]), np.minimum(box[2:], boxes[..., 2:])


def _sides(box: np.ndarray) -> np.ndarray:
    """A box (x1, y1, x2, y2) as COCO's (x, y, width, height), [1, 4] float64."""
    return np.concatenate([box[:2], np.maximum(box[2:] - box[:2], 0)])[None].astype(np.float64)
