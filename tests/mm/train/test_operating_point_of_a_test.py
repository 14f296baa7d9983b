"""``tools/test.py --operating-point``: found on validation data, kept in the checkpoint, obeyed by predictions."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("mmdet")
from mmengine.config import Config
from mmengine.evaluator import Evaluator
from test_metrics import CLASSES, ground_truth, seen  # noqa: F401

from vitdense.errors import OptionError
from vitdense.mm.config.base import Asked
from vitdense.mm.config.start import test_validation as use_validation
from vitdense.mm.errors import ConfigError
from vitdense.mm.train.coco_engines import Found, evaluate
from vitdense.mm.train.metrics import FasterCocoMetric, Truth
from vitdense.mm.train.operating_point import match, set_operating_point
from vitdense.runtime import OperatingPoint


def test_objects_are_right_as_coco_matches_them(capsys):
    boxes = [(1, 1, [0, 0, 10, 10], 0), (1, 2, [50, 50, 10, 10], 0), (2, 1, [0, 0, 100, 100], 1)]
    content = {
        "images": [{"id": i, "width": 100, "height": 100} for i in (1, 2)],
        "categories": [{"id": i, "name": name} for i, name in enumerate(CLASSES, 1)],
        "annotations": [
            {
                "id": i,
                "image_id": image,
                "category_id": category,
                "bbox": box,
                "area": box[2] * box[3],
                "iscrowd": c,
            }
            for i, (image, category, box, c) in enumerate(boxes)
        ],
    }
    truth = Truth({"a.json": content})
    truth.number(CLASSES)
    found = [
        (1, 0, 0, 10, 9, 0.9, 1),  # right
        (1, 0, 0, 10, 10, 0.8, 1),  # its object is taken
        (1, 50, 50, 10, 4, 0.7, 2),  # IoU 0.4
        (2, 3, 3, 9, 9, 0.6, 1),  # in a crowd
        (2, 3, 3, 9, 9, 0.5, 2),  # nothing there
    ]
    matches = match(
        evaluate(truth, Found(np.array(found)), "bbox", images=[1, 2], thresholds=[0.5], limits=[1, 10, 100])
    )
    rows = sorted(zip(matches.scores, matches.labels, matches.images, matches.right), reverse=True)
    assert rows == [(0.9, 0, 0, True), (0.8, 0, 0, False), (0.7, 1, 0, False), (0.5, 1, 1, False)]
    np.testing.assert_array_equal(matches.truths, [[1, 1], [0, 0]])
    assert capsys.readouterr().out == ""


@pytest.fixture
def runner(ground_truth):  # noqa: F811
    evaluator = Evaluator([seen(FasterCocoMetric, ground_truth, noise=1, prefix="coco")])
    evaluator.dataset_meta = {"classes": CLASSES}
    return SimpleNamespace(test_loop=None, test_evaluator=evaluator, test=lambda: evaluator.evaluate(6))


@pytest.fixture
def checkpoint(tmp_path):
    content = {"meta": {"iter": 7}, "state_dict": {"weight": torch.ones(2)}, "optimizer": {"state": {}}}
    torch.save(content, tmp_path / "iter_7.pth")
    return tmp_path / "iter_7.pth"


def test_it_is_kept_in_the_checkpoint_with_all_else(runner, checkpoint, monkeypatch):
    monkeypatch.setattr("vitdense.results.operating_point.WIDTH", 1)  # there are six images
    metrics = set_operating_point(runner, str(checkpoint), "f1", by_class=False)
    assert "coco/bbox_mAP" in metrics
    saved = torch.load(checkpoint, weights_only=True)
    assert saved.keys() == {"meta", "state_dict", "optimizer"}
    assert saved["meta"]["iter"] == 7
    point = OperatingPoint(**saved["meta"]["operating_point"])
    assert point.wish == "f1"
    assert len(point.thresholds) == len(CLASSES)


def test_what_is_refused_leaves_the_file_as_it_was(runner, checkpoint, tmp_path):
    before = checkpoint.read_bytes()
    with pytest.raises(OptionError, match="objects are needed"):
        set_operating_point(runner, str(checkpoint), "f1", by_class=False)
    assert checkpoint.read_bytes() == before
    with pytest.raises(ConfigError, match=r"expected a checkpoint NAME\.pth"):
        set_operating_point(runner, "https://example.com/model.pth", "f1", by_class=False)
    runner.test_evaluator.metrics = [SimpleNamespace()]
    with pytest.raises(ConfigError, match="expected a COCO metric"):
        set_operating_point(runner, str(checkpoint), "f1", by_class=False)


def test_a_test_for_it_has_the_validation_data():
    parts = {"val_dataloader": {"batch_size": 2}, "val_evaluator": {"type": "A"}}
    cfg = Config({**parts, "test_dataloader": {"batch_size": 1}, "test_evaluator": {"type": "B"}})
    use_validation(cfg, Asked(operating_point="f1"))
    assert cfg.test_dataloader == {"batch_size": 2}
    assert cfg.test_evaluator == {"type": "A"}
    with pytest.raises(OptionError, match="operating point"):
        use_validation(cfg, Asked(operating_point="f2"))
    with pytest.raises(ConfigError, match=r"got model\.onnx"):
        use_validation(cfg, Asked(operating_point="f1", checkpoint="model.onnx"))
    cfg.pop("val_dataloader")
    with pytest.raises(ConfigError, match="without val_dataloader"):
        use_validation(cfg, Asked(operating_point="f1"))
