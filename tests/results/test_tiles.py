"""Tiles: they cover an image; an object that a border cuts comes out once."""

import cv2
import numpy as np
import pytest

pytest.importorskip("pycocotools")
from pycocotools import mask as rle

from vitdense.errors import OptionError
from vitdense.results.result import Result
from vitdense.results.tiles import _Comparison, cut, detect, merge, place
from vitdense.runtime import Output

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
    assert len(cut(SIZE, 20, 0.2)) == 8 * 15
    wrong = ((0, 0.2), (1, 0.2), (7, 0.2), (19, 0.2), (-100, 0.2), (64.5, 0.2), ("64", 0.2), (None, 0.2))
    for side, overlap in (*wrong, (100, 0), (100, 1), (100, 0.99), (100, -0.5), (100, float("nan"))):
        with pytest.raises(OptionError, match="tiles: got"):
            cut(SIZE, side, overlap)


@pytest.mark.parametrize("corner", [(0, 0), (3, 0), (7, 4), (0, 4)])
def test_a_mask_of_a_tile_lies_in_the_image(corner):
    x, y = corner
    part = np.random.default_rng(0).random((20, 30)) < 0.5
    for mask in (part, np.ones_like(part), np.zeros_like(part)):
        for height in (24, y + 20):  # also to the lower edge: a run goes on in the next column
            want = np.zeros((height, 37), bool)
            want[y : y + 20, x : x + 30] = mask
            assert place(mask, corner, want.shape) == rle.encode(np.asfortranarray(want, np.uint8))


def seen(objects, tiles, masks=True):
    """Detections in tiles of objects (label, score, mask [H, W] bool), each with the box of its part in the tile."""
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
    found = Result(np.array(boxes, np.float32), np.array(scores), np.array(labels), rle=codes if masks else None)
    return found, np.array(tile_of)


def rectangle(x1, y1, x2, y2):
    mask = np.zeros(SIZE, bool)
    mask[y1:y2, x1:x2] = True
    return mask


TILES = cut(SIZE, SIDE, OVERLAP)
WIDE, TALL = rectangle(20, 70, 210, 90), rectangle(70, 5, 95, 118)
LEFT_AND_RIGHT, HALVES = cut((100, 180), 100, 0.2), (100, 180)  # x 0 to 100 and 80 to 180
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


def test_masks_merge_objects_that_boxes_cannot():
    """The boxes of the pieces of a diagonal bar have little in common where two tiles see them."""
    (code,) = merge(*seen([(0, 0.9, DIAGONAL)], TILES), TILES, SIZE).rle
    np.testing.assert_array_equal(rle.decode(code), DIAGONAL)


@pytest.mark.parametrize("masks", [True, False])
def test_different_objects_stay_apart(masks):
    """Objects of two classes in one place, and of one class side by side across a border."""
    objects = [(0, 0.9, WIDE), (1, 0.8, WIDE), (0, 0.7, rectangle(20, 92, 210, 110)), (0, 0.6, TALL)]
    got = merge(*seen(objects, TILES, masks), TILES, SIZE)
    assert len(got.scores) == 4
    assert (np.diff(got.scores) <= 0).all()
    assert sorted(got.labels) == [0, 0, 0, 1]


def test_the_best_detection_that_sees_an_object_whole_counts():
    """A piece of a higher score gives the score alone, and a second guess of the same tile nothing."""
    boxes = np.array([(70, 20, 98, 40), (80, 20, 98, 40), (80, 18, 96, 40)], np.float32)
    found = Result(boxes, np.array([0.6, 0.9, 0.3]), np.array([0, 0, 0]))
    got = merge(found, np.array([0, 1, 1]), LEFT_AND_RIGHT, HALVES)
    np.testing.assert_array_equal(got.boxes[0], boxes[0])
    assert got.scores.tolist() == [0.9]


@pytest.mark.parametrize(
    ("box", "tile", "whole"),
    [
        ((10, 10, 98, 40), 0, False),  # 2 of 100 pixels from the border of the tiles
        ((10, 10, 97.9, 40), 0, True),
        ((10, 10, 102, 40), 0, False),
        ((10, 10, 102.1, 40), 0, True),
        ((82, 10, 120, 40), 1, False),
        ((82.1, 10, 120, 40), 1, True),
        ((0, 0, 20, 100), 0, True),  # at the edges of the image
        ((160, 0, 180, 100), 1, True),
        ((0, 10, 100, 40), 0, False),
    ],
)
@pytest.mark.parametrize("size", [HALVES, (40, 180)])
def test_what_a_tile_sees_whole(box, tile, whole, size):
    """The margin is a share of the longer side of tiles."""
    found = Result(np.array([box], np.float32).clip(0, size[::-1] * 2), np.array([0.9]), np.array([0]))
    assert _Comparison(found, np.array([tile]), cut(size, 100, 0.2), size).whole.tolist() == [whole]


@pytest.mark.parametrize("masks", [True, False])
@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        # Both whole, in what both tiles see: IoU.
        ((84, 10, 96, 30), (84, 10, 96, 20), True),  # 0.5
        ((84, 10, 96, 30), (84, 10, 96, 19), False),  # 0.45
        ((84, 10, 96, 30), (84, 12, 96, 32), True),  # 18 / 22
        # The left one whole: what of the right one, which is cut, lies in it.
        ((60, 10, 96, 30), (80, 10, 96, 30), True),  # all, though the IoU is 0.44
        ((60, 10, 96, 30), (80, 20, 96, 40), True),  # half
        ((60, 10, 96, 30), (80, 22, 96, 42), False),  # 0.4
        ((88, 10, 96, 30), (80, 10, 120, 30), False),  # 0.2, though it lies in the other one, and IoU 0.4 by tiles
        # The right one whole.
        ((84, 10, 100, 30), (84, 10, 120, 30), True),
        ((84, 20, 100, 40), (84, 10, 120, 30), True),
        ((40, 10, 100, 30), (84, 10, 96, 30), False),
        # Both cut: IoU in what both tiles see.
        ((10, 10, 100, 30), (80, 10, 170, 30), True),  # 1 there, 0.125 else
        ((10, 10, 100, 30), (80, 20, 170, 40), False),  # 0.33 there
        ((10, 10, 100, 30), (80, 16, 170, 36), True),  # 14 / 26
        # Side by side.
        ((10, 10, 100, 30), (80, 30, 170, 50), False),
    ],
)
def test_which_detections_are_the_same_object(left, right, same, masks):
    boxes = np.array([left, right], np.float32)
    codes = [place(np.ones((y2 - y1, x2 - x1), bool), (x1, y1), HALVES) for x1, y1, x2, y2 in (left, right)]
    found = Result(boxes, np.array([0.9, 0.8]), np.array([0, 0]), rle=codes if masks else None)
    compare = _Comparison(found, np.array([0, 1]), LEFT_AND_RIGHT, HALVES)
    assert [compare.same(i, np.array([1 - i])).tolist() for i in range(2)] == [[same]] * 2
    # Two detections in one tile are two objects.
    assert not _Comparison(found, np.array([0, 0]), LEFT_AND_RIGHT, HALVES).same(0, np.array([1])).any()


def blobs(tiles):
    """A function of a user: of the bright rectangles of tiles boxes, scores, labels and masks."""
    for tile in tiles:
        number, labels, stats, _ = cv2.connectedComponentsWithStats((tile[..., 0] > 127).astype(np.uint8))
        x, y, w, h, _ = stats[1:].T
        yield (
            np.stack([x, y, x + w, y + h], 1),
            np.linspace(0.9, 0.5, number - 1),
            np.zeros(number - 1, int),
            labels == np.arange(1, number)[:, None, None],
        )


FORMS = {
    "lists": lambda found: found,
    "no masks": lambda found: found[:3],
    "outputs": lambda found: Output(*found),
    "results": lambda found: Result(*found, names=["blob"]),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_tiles_of_an_own_function(form, batch_size):
    image = np.zeros((*SIZE, 3), np.uint8)
    image[WIDE | rectangle(2, 2, 9, 9)] = 255
    sizes = []

    def find(tiles):
        sizes.append(len(tiles))
        return [FORMS[form](found) for found in blobs(tiles)]

    result = detect(image, find, SIDE, OVERLAP, ["blob"], batch_size)
    assert sum(sizes) == len(TILES) > max(sizes) - 1
    assert max(sizes) == batch_size
    assert sorted(map(tuple, result.boxes.tolist())) == [(2, 2, 9, 9), (20, 70, 210, 90)]
    assert (result.masks is None) == (form == "no masks")
    if form != "no masks":
        np.testing.assert_array_equal(result.masks.sum(0) > 0, image[..., 0] > 0)
    assert result.plot().size == SIZE[::-1]
    assert {one["category_id"] for one in result.to_coco()} == {1}


def test_wrong_results_of_an_own_function_are_refused():
    image, none = np.zeros((*SIZE, 3), np.uint8), Output(np.zeros((0, 4)), np.zeros(0), np.zeros(0, int))
    box = (np.array([(2, 2, 9, 9)]), np.array([0.5]), np.array([0]))
    some = (*box, np.ones((1, SIDE, SIDE), bool))
    posed = Output(*box, keypoints=np.zeros((1, 2, 3)))
    cases = ([], "got 0 results"), ([Output(*box), some], "got masks in some"), ([Output(*box), posed], "got keypoints")
    for found, match in cases:
        with pytest.raises(OptionError, match=f"find: {match}"):
            detect(image, lambda tiles, found=found: found * (len(tiles) // 2), SIDE, OVERLAP, batch_size=2)
    result = detect(image, lambda tiles: [none] * (len(tiles) - 1) + [some], SIDE, OVERLAP, batch_size=2)
    assert len(result) == len(result.masks) == 3
    assert detect(image, lambda tiles: [none] * len(tiles), SIDE).rle is None
    assert detect(image, lambda tiles: [(*(x[:0] for x in some),)] * len(tiles), SIDE).rle == []


def test_an_object_without_a_mask_is_unchanged():
    found, tile_of = seen([(3, 0.9, WIDE)], TILES)
    found.rle[0] = None
    got = merge(found, tile_of, TILES, SIZE)
    assert [code is None for code in got.rle] == [False, True]
    np.testing.assert_array_equal(got.boxes[1], found.boxes[0])
