"""Tiles: they cover an image; an object that a border cuts comes out once."""

import numpy as np
import pytest
from pycocotools import mask as rle

from vitdense.errors import OptionError
from vitdense.inspect.tiles import Found, cut, merge, place

SIZE, SIDE, OVERLAP = (120, 230), 100, 0.2


@pytest.mark.parametrize("size", [(100, 100), (40, 60), (101, 350), (999, 130)])
@pytest.mark.parametrize("overlap", [0.1, 0.5])
def test_tiles_cover_the_image_and_overlap(size, overlap):
    tiles = cut(size, 100, overlap)
    seen = np.zeros(size, int)
    for x1, y1, x2, y2 in tiles:
        assert (y2 - y1, x2 - x1) == (min(100, size[0]), min(100, size[1]))
        seen[y1:y2, x1:x2] += 1
    assert seen.min() == 1 or len(tiles) > 1
    for starts, length in ((tiles[:, 0], size[1]), (tiles[:, 1], size[0])):
        steps = np.diff(np.unique(starts))
        assert steps.max(initial=0) <= 100 * (1 - overlap) + 1
        # None fewer would do.
        assert len(steps) == 0 or 100 + (len(steps) - 1) * 100 * (1 - overlap) < length


def test_wrong_sizes_are_refused():
    for side, overlap in ((0, 0.2), (100, 0), (100, 1)):
        with pytest.raises(OptionError, match="tiles: got"):
            cut(SIZE, side, overlap)


@pytest.mark.parametrize("corner", [(0, 0), (3, 0), (7, 4), (0, 4)])
def test_a_mask_of_a_tile_lies_in_the_image(corner):
    x, y = corner
    part = np.random.default_rng(0).random((20, 30)) < 0.5
    for mask in (part, np.ones_like(part), np.zeros_like(part)):
        want = np.zeros((24, 37), bool)
        want[y : y + 20, x : x + 30] = mask
        assert place(mask, corner, (24, 37)) == rle.encode(np.asfortranarray(want, np.uint8))


def seen(objects, tiles, masks=True):
    """What tiles see of objects, (label, score, mask [H, W] bool): each at the box of what is in the tile."""
    boxes, scores, labels, codes, tile_of = [], [], [], [], []
    for i, (x1, y1, x2, y2) in enumerate(tiles):
        for label, score, mask in objects:
            part = mask[y1:y2, x1:x2]
            if part.any():
                rows, columns = part.any(1).nonzero()[0], part.any(0).nonzero()[0]
                box = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
                boxes.append(np.add(box, (x1, y1, x1, y1)))
                scores.append(score - 0.01 * i)
                labels.append(label)
                codes.append(place(part, (x1, y1), SIZE))
                tile_of.append(i)
    found = Found(np.array(boxes, np.float32), np.array(scores), np.array(labels), codes if masks else None)
    return found, np.array(tile_of)


def rectangle(x1, y1, x2, y2):
    mask = np.zeros(SIZE, bool)
    mask[y1:y2, x1:x2] = True
    return mask


TILES = cut(SIZE, SIDE, OVERLAP)
WIDE, TALL = rectangle(20, 70, 210, 90), rectangle(70, 5, 95, 118)
DIAGONAL = np.abs(np.subtract.outer(np.arange(SIZE[0]), np.arange(SIZE[1])) + 30) < 6


@pytest.mark.parametrize("masks", [True, False])
@pytest.mark.parametrize("mask", [WIDE, TALL, rectangle(60, 10, 90, 30), rectangle(2, 2, 9, 9)])
def test_an_object_comes_out_once(mask, masks):
    got = merge(*seen([(3, 0.9, mask)], TILES, masks), TILES, SIZE)
    assert len(got.scores) == 1
    rows, columns = mask.any(1).nonzero()[0], mask.any(0).nonzero()[0]
    np.testing.assert_array_equal(got.boxes[0], (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1))
    assert got.labels[0] == 3
    if masks:
        np.testing.assert_array_equal(rle.decode(got.rle[0]), mask)


def test_masks_join_what_boxes_cannot():
    """The boxes of the pieces of a diagonal bar have little in common where two tiles see them."""
    (code,) = merge(*seen([(0, 0.9, DIAGONAL)], TILES), TILES, SIZE).rle
    np.testing.assert_array_equal(rle.decode(code), DIAGONAL)


@pytest.mark.parametrize("masks", [True, False])
def test_different_objects_stay_apart(masks):
    """Of two classes in one place, and of one class side by side across a border."""
    objects = [(0, 0.9, WIDE), (1, 0.8, WIDE), (0, 0.7, rectangle(20, 92, 210, 110)), (0, 0.6, TALL)]
    got = merge(*seen(objects, TILES, masks), TILES, SIZE)
    assert len(got.scores) == 4
    assert (np.diff(got.scores) <= 0).all()
    assert sorted(got.labels) == [0, 0, 0, 1]


def test_the_best_detection_that_sees_an_object_whole_counts():
    """A piece of a higher score gives the score alone, and a second guess of the same tile nothing."""
    (left, right), size = cut((100, 180), 100, 0.2), (100, 180)
    boxes = np.array([(70, 20, 98, 40), (80, 20, 98, 40), (80, 18, 96, 40)], np.float32)
    found = Found(boxes, np.array([0.6, 0.9, 0.3]), np.array([0, 0, 0]))
    got = merge(found, np.array([0, 1, 1]), np.array([left, right]), size)
    np.testing.assert_array_equal(got.boxes[0], boxes[0])
    assert got.scores.tolist() == [0.9]


def test_nothing_found():
    got = merge(Found(np.zeros((0, 4), np.float32), np.zeros(0), np.zeros(0, int), []), np.zeros(0, int), TILES, SIZE)
    assert got.boxes.shape == (0, 4)
    assert got.rle == []
