"""`vitdense new detection --keypoints`: a config of own keypoints, which starts from the authors' file."""

import json

import pytest
import torch
from test_rfdetr_keypoints import drawn

from vitdense.__main__ import main
from vitdense.checkpoint.whole_models import fit_whole
from vitdense.extensions.keypoints.figures import draw_figures
from vitdense.mm.checks import dry_step
from vitdense.mm.checks.config import mixing
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config

pytestmark = pytest.mark.long


@pytest.fixture
def new(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dry_step, "find", lambda *_: ())  # of a large model
    draw_figures("own", num_train=4, num_val=2, workers=1)
    torch.save({"model": drawn(91)}, "weights.pth")
    files = [item for split in ("train", "val") for item in (f"--{split}", f"own/annotations/keypoints_{split}.json")]
    images = ["--images", "own/train", "--val-images", "own/val"]
    return lambda *options: main(["new", "detection", "mine.py", *files, *images, *options])


def test_all_but_classes_and_points_is_from_the_file(new):
    assert new("--method", "rfdetr", "--keypoints", "--weights", "weights.pth", "--epochs", "1") == 0
    cfg = load_config("mine.py")
    assert cfg.model.bbox_head.num_keypoints == 11
    assert cfg.train_dataloader.dataset.type == cfg.val_dataloader.dataset.type == "vitdense.KeypointDataset"
    assert cfg.val_evaluator.ann_file.endswith("keypoints_val.json")
    assert cfg.model.bbox_head.num_classes == 1
    fresh = cfg.default_hooks.exact_load.fresh
    model = build_model(cfg)
    state, report = fit_whole(model, torch.load("weights.pth", weights_only=False), fresh)
    assert {key.rpartition(".")[0] if "classes" in key else key for key in report.kept_at_init} == {
        *("bbox_head.decoder.kinds", "bbox_head.points.queries", "bbox_head.first_points.queries"),
        *("bbox_head.classes", *(f"bbox_head.selections.{i}.classes" for i in range(13))),
    }
    model.load_state_dict({**model.state_dict(), **state}, strict=True)


def test_from_a_base(new):
    assert new("--base", "rfdetr_keypoints_nano_figures", "--keypoints", "--iters", "5") == 0
    cfg = load_config("mine.py")
    assert cfg.train_dataloader.dataset.type == cfg.val_dataloader.dataset.type == "vitdense.KeypointDataset"
    assert cfg.train_dataloader.dataset.pipeline[2].type == "vitdense.LoadKeypoints"


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--method", "cascade", "--keypoints"], "--keypoints: got --method cascade"),
        (["--method", "rfdetr", "--keypoints", "--masks"], "leave all but one out"),
        (["--base", "rfdetr_keypoints_nano_figures", "--iters", "5"], "for its labels"),
        (["--base", "rfdetr_nano_shapes", "--keypoints", "--iters", "5"], "expected vitdense.KeypointDataset"),
    ],
)
def test_what_contradicts(new, options, what, capsys):
    with pytest.raises(SystemExit):
        new(*options)
    assert what in capsys.readouterr().err


@pytest.mark.parametrize(("names", "what"), [(None, "no 'keypoints'"), ("two", "one category")])
def test_data_without_keypoints_or_of_several_categories(new, names, what, capsys, tmp_path):
    file = tmp_path / "own/annotations/keypoints_train.json"
    content = json.loads(file.read_text())
    if names is None:
        del content["categories"][0]["keypoints"]
    else:
        content["categories"].append({"id": 2, "name": names})
    file.write_text(json.dumps(content))
    with pytest.raises(SystemExit):
        new("--method", "rfdetr", "--keypoints", "--weights", "weights.pth")
    assert what in capsys.readouterr().err


def test_mosaics_do_not_mix_keypoints():
    cfg, steps = load_config("rfdetr_keypoints_nano_figures"), [{"type": "vitdense.Mosaic"}]
    inside = cfg.train_dataloader.dataset
    cfg.train_dataloader.dataset = dict(type="MultiImageMixDataset", dataset=inside, pipeline=steps)
    (fault,) = mixing(cfg, ("train",))
    assert "vitdense.Mosaic" in str(fault)
    assert "keypoints" in str(fault)
