"""Results: objects, classes and segments of an image, as pictures and in the formats of others."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("pycocotools")
from pycocotools import mask as rle

from vitdense.errors import OptionError
from vitdense.results import draw
from vitdense.results.result import Result

IMAGE = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
NAMES = ["cat", "dog", "bird"]
PALETTE = np.array([(255, 0, 0), (0, 255, 0), (0, 0, 255)], np.uint8)
BOXES = np.array([(4, 30, 24, 50), (40, 32, 70, 56)], np.float32)
MASKS = np.zeros((2, 60, 80), bool)
SHOWN = {"image": IMAGE, "names": NAMES, "palette": PALETTE}
MASKS[0, 32:48, 6:20], MASKS[1, 34:50, 45:60] = True, True


def coded(mask):
    code = rle.encode(np.asfortranarray(mask, np.uint8))
    return {"size": list(code["size"]), "counts": code["counts"].decode()}


def detections(with_masks=True):
    fields = {"boxes": BOXES.copy(), "scores": np.float32([0.9, 0.4]), "labels": np.array([2, 0])}
    return Result(**{**SHOWN, "image": IMAGE.copy()}, **fields, rle=[*map(coded, MASKS)] if with_masks else None)


def semantic():
    labels = np.zeros((60, 80), np.int64)
    labels[:30] = 1
    return Result(**SHOWN, semantic=labels)


def segments():
    ids = np.zeros((60, 80), np.int64)
    ids[10:30], ids[30:], ids[30:, 50:] = 1, 2, 3
    found = [{"id": i, "label": label, "score": None, "is_thing": label == 1} for i, label in ((1, 1), (2, 0), (3, 1))]
    return Result(**SHOWN, panoptic=ids, segments=found)


@pytest.mark.parametrize(
    ("result", "number", "text"),
    [
        (detections(), 2, "Result(60x80: 2 objects, masks; bird 0.90, cat 0.40)"),
        (detections(with_masks=False), 2, "Result(60x80: 2 objects; bird 0.90, cat 0.40)"),
        (semantic(), 2, "Result(60x80: classes; dog 50%, cat 50%)"),
        (segments(), 3, "Result(60x80: 3 segments; dog, cat, dog)"),
        (Result(np.zeros((0, 4)), np.zeros(0), np.zeros(0, int), image=IMAGE), 0, "Result(60x80: 0 objects)"),
        (Result(BOXES[[0] * 9], np.ones(9), np.full(9, 7)), 9, f"Result(9 objects; {'7 1.00, ' * 5}...)"),
    ],
)
def test_a_result_has_a_number_of_things_and_is_printed_in_a_line(result, number, text):
    assert (len(result), repr(result)) == (number, text)
    assert repr(Result()) == "Result(nothing)"


def test_masks():
    result = detections()
    assert (result.masks == MASKS).all()
    assert result.masks.dtype == result.mask(1).dtype == bool
    assert (result.mask(1) == MASKS[1]).all()
    assert detections(with_masks=False).masks is None
    none = Result(np.zeros((0, 4), np.float32), np.zeros(0), np.zeros(0, int), rle=[], **SHOWN)
    assert none.masks.shape == (0, 60, 80)
    assert Result(none.boxes, none.scores, none.labels, rle=[]).masks.shape == (0, 0, 0)
    assert Result(boxes=BOXES, masks=MASKS).rle == result.rle


@pytest.mark.parametrize("make", [detections, semantic, segments])
def test_results_are_equal_by_their_values(make):
    one, other = make(), make()
    assert one == other
    other.names = tuple(other.names)
    assert one == other
    assert one != "a result"
    assert one != Result()
    changes = {"names": ["a", "b", "c"], "image": IMAGE[::-1], "boxes": BOXES + 1, "rle": []}
    for change in ({name: value} for name, value in changes.items()):
        other = make()
        vars(other).update(change)
        assert one != other
        assert other != one


def test_coco():
    found = detections().to_coco(image_id=7, category_ids=[10, 20, 30])
    assert [(one["image_id"], one["category_id"]) for one in found] == [(7, 30), (7, 10)]
    assert [one["bbox"] for one in found] == [[4, 30, 20, 20], [40, 32, 30, 24]]
    assert [one["score"] for one in found] == pytest.approx([0.9, 0.4])
    assert [one["segmentation"] for one in found] == [coded(mask) for mask in MASKS]
    found = detections(with_masks=False).to_coco()
    assert [(one["image_id"], one["category_id"]) for one in found] == [(0, 3), (0, 1)]
    assert all(one.keys() == {"image_id", "category_id", "bbox", "score"} for one in found)
    with pytest.raises(OptionError, match="category_ids: got 2"):
        detections().to_coco(category_ids=[10, 20])


def test_supervision(monkeypatch):
    supervision = SimpleNamespace(Detections=lambda *args, **options: (args, options))
    monkeypatch.setitem(sys.modules, "supervision", supervision)
    result = detections()
    result.keypoints = np.zeros((2, 5, 3), np.float32)
    (boxes,), options = result.to_supervision()
    assert (boxes == BOXES).all()
    assert (options["mask"] == MASKS).all()
    assert options["data"]["class_name"].tolist() == ["bird", "cat"]
    assert options["data"]["keypoints"] is result.keypoints
    assert options["class_id"].tolist() == [2, 0]
    assert options["confidence"].tolist() == pytest.approx([0.9, 0.4])


@pytest.mark.parametrize(
    ("make", "method", "got"),
    [
        (semantic, "to_coco", r"\.boxes; it has \.semantic"),
        (segments, "to_coco", r"\.boxes; it has \.panoptic, \.segments"),
        (semantic, "to_supervision", r"\.boxes; it has \.semantic"),
        (segments, "to_supervision", r"\.boxes; it has \.panoptic, \.segments"),
        (lambda: detections(with_masks=False), "mask", r"\.rle; it has \.boxes"),
        (lambda: Result(BOXES), "plot", r"\.image"),
        (Result, "to_coco", "no field"),
    ],
)
def test_a_method_that_needs_an_absent_field_raises(make, method, got):
    with pytest.raises(OptionError, match=f"{method}: .*{got}"):
        getattr(make(), method)(*([0] if method == "mask" else []))


def test_picture_of_objects():
    result = detections()
    result.boxes[1] = (6, 32, 30, 52)  # over the first one, which has the higher score
    picture = np.asarray(result.plot())
    assert picture.shape == IMAGE.shape
    assert (picture[40, 4] == PALETTE[2]).all()  # the left edge of its box, in the colour of its class
    assert (picture[51, 20] == PALETTE[0]).all()  # the lower edge of the other one
    inside = np.round(0.55 * IMAGE[36, 10] + 0.45 * PALETTE[2])
    assert np.abs(picture[36, 10] - inside).max() <= 1
    np.testing.assert_array_equal(result.image, IMAGE)


def test_texts_of_objects_name_class_and_score(monkeypatch):
    seen = []
    monkeypatch.setattr(draw, "instances", lambda image, boxes, texts, *_, **__: seen.append(texts) or image)
    detections().plot()
    assert seen == [["cat 0.40", "bird 0.90"]]  # the highest score on top


@pytest.mark.parametrize("make", [semantic, segments])
def test_pictures_with_a_legend(make, monkeypatch):
    shares = []
    with_legend = draw.with_legend
    monkeypatch.setattr(draw, "with_legend", lambda *args: shares.append(args[3]) or with_legend(*args))
    result = make()
    picture = np.asarray(result.plot())
    assert picture.shape[1] > 80
    want = [0.5, 0.5, 0] if make is semantic else [0.3125, 0.520833333, 0]
    np.testing.assert_allclose(shares[0], want)
    for row, label in ((20, 1), (45, 0)):
        mixed = np.round(0.5 * IMAGE[row, 10] + 0.5 * PALETTE[label])
        assert np.abs(picture[row, 10].astype(int) - mixed).max() <= 1
    if make is segments:  # where there is no segment, black; the second one of a class has another shade
        assert np.abs(picture[4, 10].astype(int) - np.round(0.5 * IMAGE[4, 10])).max() <= 1
        second = np.round(0.5 * IMAGE[45, 70] + 0.5 * np.round(0.65 * PALETTE[1] + 0.35 * 255))
        assert np.abs(picture[45, 70].astype(int) - second).max() <= 1


@pytest.mark.parametrize("suffix", [".jpg", ".JPEG", ".png"])
def test_files_of_pictures(suffix, tmp_path):
    result = detections()
    result.save(tmp_path / f"new/drawn{suffix}")
    with Image.open(tmp_path / f"new/drawn{suffix}") as image:
        got = np.asarray(image).astype(int)
        layers = getattr(image, "layer", None)
    want = np.asarray(result.plot()).astype(int)
    assert np.abs(got - want).mean() < (0.001 if suffix == ".png" else 5)
    assert layers is None or {layer[1:3] for layer in layers} == {(1, 1)}  # colours are not subsampled
    assert [path.name for path in (tmp_path / "new").iterdir()] == [f"drawn{suffix}"]
