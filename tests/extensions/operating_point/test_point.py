"""The operating point beside a checkpoint, as a model that is loaded has it."""

import json

import numpy as np
import pytest
import torch
from random_detector import random_detector

import vitdense
from vitdense.extensions.operating_point.point import conditions_of, digest_of
from vitdense.mm import precision
from vitdense.mm.config.load import load_config
from vitdense.mm.data.shapes import CLASSES, draw_image
from vitdense.mm.export.samples import describe
from vitdense.mm.predictor import Predictor

PHOTO = draw_image(np.random.default_rng(0), (96, 128))[0]


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder, (cfg, state) = tmp_path_factory.mktemp("work"), random_detector("cascade_swin_nano_shapes")
    checkpoint = str(folder / "iter_1.pth")
    torch.save({"meta": {"dataset_meta": {"classes": CLASSES}}, "state_dict": state}, checkpoint)
    cfg.dump(folder / "cascade.py")
    found = vitdense.load(folder)(PHOTO, score_thr=0.0)
    middle, first = float(np.median(found.scores)), found.labels[0]
    thresholds = {name: middle if label == first else 1.0 for label, name in enumerate(CLASSES)}
    content = {"wish": "f1", "thresholds": thresholds, "precision": 0.5, "recall": 0.5}
    content |= {"sha256": digest_of(checkpoint), "conditions": conditions_of(cfg, None, 0.2)}
    (folder / "operating_point.json").write_text(json.dumps(content))
    return folder, thresholds


def test_it_is_the_default(work):
    folder, thresholds = work
    model = vitdense.load(folder)
    want, found = model(PHOTO, score_thr=0.0), model(PHOTO)
    kept = want.scores >= np.float32([*thresholds.values()])[want.labels]
    assert 0 < kept.sum() < len(want)
    np.testing.assert_array_equal(found.boxes, want.boxes[kept])
    assert len(found.rle) == kept.sum()
    assert json.loads(describe(model)["operating_point"])["thresholds"] == thresholds
    assert vitdense.load(folder, score_thr=0.05).score_thr == 0.05


OPTIONS = {"size": {"settings.image_size": 64}, "head": {"model.test_cfg.rcnn.max_per_img": 3}}


@pytest.mark.parametrize(
    ("option", "said"), [("tiles", "tiles"), ("size", "scale"), ("head", "max_per_img"), ("weights", "other weights")]
)
def test_of_other_weights_images_or_options_it_is_left_out(work, option, said, monkeypatch):
    folder, _ = work
    lines, cfg = [], load_config(folder, OPTIONS.get(option, {}))
    monkeypatch.setattr("vitdense.extensions.operating_point.point.print_log", lambda text, *args: lines.append(text))
    if option == "weights":
        monkeypatch.setattr("vitdense.extensions.operating_point.point.digest_of", lambda checkpoint: "of another file")
    inference = precision.Inference(tiles=64 if option == "tiles" else None)
    model = Predictor(cfg, str(folder / "iter_1.pth"), inference)
    assert (model.operating_point, model.score_thr) == (None, 0.3)
    (line,) = lines
    assert "operating_point.json" in line
    assert said in line
