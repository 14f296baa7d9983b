"""When a program equals its model, the metadata of a file, and the photos to compare on."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("mmdet")
from mmengine.config import Config, ConfigDict

from vitdense.export.program import can_compare, compare_maps
from vitdense.mm.errors import ConfigError
from vitdense.mm.export.samples import describe, of_one_size, paths_of
from vitdense.mm.predictor import ImageReader
from vitdense.runtime import BOUNDS, Output, above, changes, compare_results

BOXES = np.float32([(0, 0, 10, 10), (20, 20, 40, 30), (5, 5, 5, 9)])
MASKS = np.zeros((3, 50, 50), bool)
MASKS[0, :10, :10] = MASKS[1, 20:30, 20:40] = True


def output(boxes=BOXES, scores=(0.9, 0.4, 0.3), labels=(1, 0, 1), masks=None):
    return Output(np.float32(boxes), np.float32(scores), np.array(labels), masks)


def moved(dx, boxes=BOXES):
    return boxes + np.float32([dx, 0, dx, 0])


@pytest.mark.parametrize(
    ("precision", "got", "fits"),
    [
        ("float32", output(), True),
        ("float32", output(scores=(0.9009, 0.4, 0.3)), True),
        ("float32", output(scores=(0.9011, 0.4, 0.3)), False),
        ("float32", output(labels=(0, 0, 1)), False),
        ("float32", output(moved(0.004)), True),
        ("float32", output(moved(0.02)), False),
        ("float32", output(BOXES[:1], (0.9,), (1,)), False),
        ("float32", output(np.zeros((0, 4)), (), ()), False),
        ("float32", output(BOXES[[1, 0]], (0.4, 0.9), (0, 1)), True),  # in any order
        ("float32", output(np.concatenate([BOXES, BOXES]), (0.2, 0.9, 0, 0.9, 0.4, 0), (1, 1, 1, 1, 0, 1)), True),
        ("float16", output(moved(0.09), (0.919, 0.4, 0.3)), True),
        ("float16", output(moved(0.09), (0.921, 0.4, 0.3)), False),
        ("int8", output(moved(3), (0.71, 0.59, 0.3)), True),
        ("int8", output(moved(3), (0.69, 0.4, 0.3)), False),
        ("int8", output(moved(4), (0.9, 0.4, 0.3)), False),
        ("float32", output(BOXES + np.nan), False),
        ("float32", output(scores=(np.nan,) * 3), False),
    ],
)
def test_objects(precision, got, fits):
    """The third one, whose box has no area, does not count."""
    found, said = compare_results([(got, output())], BOUNDS[precision])
    assert found == fits
    assert "of 2 objects" in said
    assert ("expected" in said) != fits


def test_objects_below_the_bound_do_not_count():
    for score, counts in ((0.05, False), (0.051, True)):
        want = output(scores=(score, 0.01, 0.9))
        assert can_compare([want], BOUNDS["float32"]) == counts
        assert can_compare([output(BOXES[:0], (), ()), want], BOUNDS["float32"]) == counts
        fits, said = compare_results([(want, want)], BOUNDS["float32"])
        assert fits == counts
        assert ("no object" in said) != counts


def test_a_share_of_the_objects_may_differ_in_int8():
    boxes = np.float32([(30 * i, 0, 30 * i + 20, 20) for i in range(10)])
    want = output(boxes, (0.9,) * 10, (0,) * 10)
    for wrong, fits in ((1, True), (2, False)):
        got = output(boxes, (0.9,) * 10, (1,) * wrong + (0,) * (10 - wrong))
        found, said = compare_results([(got, want)], BOUNDS["int8"])
        assert found == fits
        assert f"{10 - wrong} of 10" in said


def test_masks_of_objects():
    other = MASKS.copy()
    other[1, 20, 20:22] = False  # 198 of 200 pixels
    want = output(masks=MASKS)
    fits, said = compare_results([(output(masks=other), want)], BOUNDS["float32"])
    assert fits
    assert "masks with IoU 0.9900" in said
    other[1, 20, 22] = False
    assert not compare_results([(output(masks=other), want)], BOUNDS["float32"])[0]
    empty = output(masks=np.zeros_like(MASKS))
    assert compare_results([(empty, empty)], BOUNDS["float32"])[0]
    assert not compare_results([(empty, want)], BOUNDS["float32"])[0]


def test_lost_and_new_objects():
    boxes = np.float32([(30 * i, 0, 30 * i + 20, 20) for i in range(10)])
    want = output(boxes, np.linspace(0.9, 0.5, 10), (0,) * 10)
    for got, number in (
        (output(boxes[::-1], (0.4,) * 10, (0,) * 10), 0),
        (output(moved(6, boxes), (0.5,) * 10, (0,) * 10), 0),  # IoU 14 / 26
        (output(moved(7, boxes), (0.5,) * 10, (0,) * 10), 20),
        (output(boxes[:9], (0.5,) * 9, (0,) * 9), 1),
        (output(boxes, (0.5,) * 10, (1,) + (0,) * 9), 2),  # one lost, and one new
        (output(np.concatenate([boxes, boxes[:1]]), (0.5,) * 11, (0,) * 11), 1),  # one is not two
        (output(boxes[:0], (), ()), 10),
    ):
        share, said = changes([(want, want), (got, want)])
        assert share == pytest.approx(number / 20)
        assert f"{number / 20:.1%}" in said
    masks = np.zeros((10, 30, 300), bool)
    masks[:, :20, :20] = True
    other = masks.copy()
    other[0, :11] = False
    pair = output(boxes, (0.5,) * 10, (0,) * 10, other), output(boxes, (0.5,) * 10, (0,) * 10, masks)
    assert changes([pair])[0] == pytest.approx(0.2)
    none = output(boxes[:0], (), (), masks[:0])
    assert changes([pair, (none, none)])[0] == pytest.approx(0.2)
    assert changes([(none, pair[1])])[0] == 1


def test_objects_count_by_the_threshold_of_their_class():
    found = output(scores=(0.4, 0.4, 0.6), labels=(0, 1, 1), masks=MASKS)
    assert above(found, 0.5).scores.tolist() == pytest.approx([0.6])
    kept = above(found, (0.3, 0.5))
    assert kept.labels.tolist() == [0, 1]
    assert (kept.masks == MASKS[[0, 2]]).all()
    pixels = Output(semantic=np.zeros((2, 5), int))
    assert above(pixels, 0.5) is pixels
    other = Output(semantic=np.eye(2, 5, dtype=int) * [1, 0, 0, 0, 0])
    assert changes([(other, pixels)])[0] == pytest.approx(0.1)


def test_classes_of_pixels():
    want = np.zeros((10, 100), int)
    got = want.copy()
    got[0, 0] = 1

    def compare(*found):
        return compare_results([(Output(semantic=x), Output(semantic=want)) for x in found], BOUNDS["float32"])

    assert compare(got, want) == (True, "99.90% of the pixels with the model's class")
    assert can_compare([Output(semantic=want)], BOUNDS["float32"])
    got[0, 1] = 1
    fits, said = compare(want, got)
    assert not fits
    assert "99.9%" in said


def test_maps():
    want = {"a": torch.ones(4)}
    for error, fits in ((9e-5, True), (1.1e-4, False), (float("nan"), False)):
        found, said = compare_maps({"a": torch.ones(4) + error}, want, BOUNDS["float32"])
        assert found == fits
        assert ("expected" in said) != fits


def predictor(*steps, head=None, static=None, **model):
    preprocessor = ConfigDict(mean=[1, 2, 3], std=[4, 5, 6], bgr_to_rgb=True)
    dataset = dict(type="X", pipeline=[dict(type="LoadImageFromFile"), *steps, dict(type="Pack")])
    model = {"data_preprocessor": preprocessor, **model}
    cfg = Config(dict(model=model, test_dataloader=dict(dataset=dataset)))
    cfg = of_one_size(cfg, static) if static else cfg
    inner, dataset = SimpleNamespace(cfg=cfg, decode_head=head), cfg.test_dataloader.dataset
    reader = ImageReader(dataset.pipeline[:1])
    return SimpleNamespace(model=inner, names=["a", "b"], dataset=dataset, operating_point=None, reader=reader)


RESIZE = dict(type="Resize", scale=(80, 60), keep_ratio=True)


def described(*args, **options):
    return {key: json.loads(value) for key, value in describe(predictor(*args, **options)).items()}


def test_descriptions():
    about = described(RESIZE)
    assert about["resize"] == {"scale": [80, 60], "keep_ratio": True}
    assert (about["mean"], about["std"], about["channels"]) == ([1, 2, 3], [4, 5, 6], "RGB")
    assert (about["classes"], about["mask_thr"], about["mask_stride"]) == (["a", "b"], 0.5, None)
    assert (about["threshold"], about["queries"]) == (None, None)
    assert described()["resize"] is None
    assert described(dict(type="mmseg.Resize", scale=(80, 60)))["resize"] == {"scale": [80, 60], "keep_ratio": False}
    for steps in ((RESIZE, RESIZE), (dict(type="Pad", size=(9, 9)),), (RESIZE, dict(type="RandomFlip"))):
        assert "resize" not in described(*steps)
        assert described(*steps, static=(64, 96))["resize"] == {"scale": [96, 64], "keep_ratio": False}
    assert described(head=SimpleNamespace(threshold=0.3))["threshold"] == 0.3
    assert described(test_cfg={"rcnn": {"mask_thr_binary": 0.4}})["mask_thr"] == 0.4
    assert described(data_preprocessor={})["channels"] == "BGR"


class Files:
    def __init__(self, number, pipeline):
        self.number = number

    def __len__(self):
        return self.number

    def get_data_info(self, i):
        return {"img_path": f"{i}.png"}


def test_files_of_a_data_set():
    assert paths_of({"type": Files, "number": 10}, (), 3) == ["0.png", "3.png", "6.png"]
    assert paths_of({"type": Files, "number": 2}, (), 3) == ["0.png", "1.png"]
    assert paths_of({}, ["a.png"], 3) == ["a.png"]
    with pytest.raises(ConfigError, match="--images"):
        paths_of({"type": "mmdet.CocoDataset", "ann_file": "gone.json"}, (), 3)
