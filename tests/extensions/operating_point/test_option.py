"""``vitdense test --operating-point``: found on validation data, kept in a file beside the checkpoint."""

import json
from argparse import Namespace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import Config

from vitdense.errors import OptionError
from vitdense.extensions.operating_point import find, option
from vitdense.extensions.operating_point.find import match
from vitdense.extensions.operating_point.point import read_point
from vitdense.mm.errors import ConfigError
from vitdense.mm.train.coco_engines import Found, Truth, evaluate

CLASSES = ("cat", "dog")


def evaluated():
    boxes = [(1, 1, [0, 0, 10, 10], 0), (1, 2, [50, 50, 10, 10], 0), (2, 1, [0, 0, 100, 100], 1)]
    annotations = [
        {"id": i, "image_id": image, "category_id": category, "bbox": box, "area": box[2] * box[3], "iscrowd": crowd}
        for i, (image, category, box, crowd) in enumerate(boxes)
    ]
    images = [{"id": i, "width": 100, "height": 100} for i in (1, 2)]
    categories = [{"id": i, "name": name} for i, name in enumerate(CLASSES, 1)]
    truth = Truth({"a.json": {"images": images, "categories": categories, "annotations": annotations}})
    truth.number(CLASSES)
    found = [
        (1, 0, 0, 10, 9, 0.9, 1),  # right
        (1, 0, 0, 10, 10, 0.8, 1),  # its object is taken
        (1, 50, 50, 10, 4, 0.7, 2),  # IoU 0.4
        (2, 3, 3, 9, 9, 0.6, 1),  # in a crowd
        (2, 3, 3, 9, 9, 0.5, 2),  # nothing there
    ]
    return evaluate(truth, Found(np.array(found)), "bbox", images=[1, 2], thresholds=[0.5], limits=[1, 10, 100])


def test_objects_are_right_as_coco_matches_them(capsys):
    matches = match(evaluated())
    rows = sorted(zip(matches.scores, matches.labels, matches.right), reverse=True)
    assert rows == [(0.9, 0, True), (0.8, 0, False), (0.7, 1, False), (0.5, 1, False)]
    np.testing.assert_array_equal(matches.truths, [1, 1])
    assert capsys.readouterr().out == ""


@pytest.fixture
def work(tmp_path, monkeypatch):
    torch.save({"state_dict": {"weight": torch.ones(2)}}, tmp_path / "iter_7.pth")
    evaluator = SimpleNamespace(metrics=[SimpleNamespace(evaluations=None)], dataset_meta={"classes": CLASSES})
    pipeline = [{"type": "LoadImageFromFile"}, {"type": "Resize", "scale": (64, 64)}]
    loader = {"dataset": {"type": "CocoDataset", "pipeline": pipeline}}
    cfg = Config({"val_dataloader": loader, "val_evaluator": {"type": "A"}, "test_dataloader": {}, "custom_hooks": []})
    cfg.load_from = str(tmp_path / "iter_7.pth")
    args = Namespace(operating_point="f1", by_class=False, tiles=None, overlap=0.2)
    monkeypatch.setattr(find, "FEWEST", 1)
    return tmp_path, args, cfg, SimpleNamespace(test_evaluator=evaluator, cfg=cfg)


def test_the_file_is_written_beside_the_unchanged_checkpoint(work):
    folder, args, cfg, runner = work
    before = (folder / "iter_7.pth").read_bytes()
    option.change(cfg, args)
    assert cfg.test_evaluator == {"type": "A"}
    assert cfg.test_dataloader == cfg.val_dataloader
    option.before(args, runner)
    runner.test_evaluator.metrics[0].evaluations.append(evaluated())
    option.after(args, {}, runner)
    assert (folder / "iter_7.pth").read_bytes() == before
    content = json.loads((folder / "operating_point.json").read_text())
    steps = [{"type": "Resize", "scale": [64, 64]}]
    assert content["conditions"] == {"steps": steps, "tiles": None, "overlap": None, "test_cfg": None}
    assert read_point(cfg.load_from, cfg, CLASSES, None, 0.2).wish == "f1"
    assert read_point(cfg.load_from, cfg, CLASSES, 64, 0.2) is None


def test_what_is_refused(work):
    folder, args, cfg, runner = work
    with pytest.raises(OptionError, match="f2"):
        option.change(cfg, Namespace(operating_point="f2"))
    for wrong, said in (({"load_from": None}, "exported"), ({"val_dataloader": None}, "val_dataloader")):
        other = cfg.copy()
        other.merge_from_dict(wrong)
        with pytest.raises(ConfigError, match=said):
            option.change(other, args)
    runner.test_evaluator.metrics = [SimpleNamespace()]
    with pytest.raises(ConfigError, match="expected a COCO metric"):
        option.before(args, runner)
    assert not (folder / "operating_point.json").exists()


POINT = {"wish": "f1", "thresholds": 0.4, "precision": 0.9, "recall": 0.8, "sha256": "0", "conditions": {}}


@pytest.mark.parametrize(
    "content",
    [
        '{"wish": "f1"',
        "[" * 100_000,
        "[]",
        {**POINT, "thresholds": {"owl": 0.4}},
        {**POINT, "conditions": 7},
        {key: value for key, value in POINT.items() if key != "sha256"},
    ],
    ids=lambda content: str(content)[:80],
)
def test_a_damaged_or_edited_file_is_refused_in_one_line(work, content):
    folder, _, cfg, _ = work
    cfg.test_dataloader = cfg.val_dataloader
    file = folder / "operating_point.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ConfigError, match="operating_point") as caught:
        read_point(cfg.load_from, cfg, CLASSES, None, 0.2)
    assert "\n" not in str(caught.value)
