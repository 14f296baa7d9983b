"""`python -m vitdense check`."""

import re

import numpy as np
import pytest
from kinds import Coco, H, Maps, W, config_of, photo
from mmengine.config import Config

from vitdense.__main__ import main
from vitdense.mm import checks
from vitdense.mm.checks import dry_step, model
from vitdense.mm.checks.report import look, report


@pytest.fixture(autouse=True)
def without_models(monkeypatch, request):
    if "repo" not in request.fixturenames:
        monkeypatch.setattr(checks, "CHECKS", [one for one in checks.CHECKS if one is not model.build])
        monkeypatch.setattr(dry_step, "find", lambda *_: ())


@pytest.fixture
def data():
    data = Coco()
    data.train["annotations"] = data.train["annotations"][:4:2]
    return data


def config(data, folder):
    cfg = config_of(data, folder)
    cfg.val_dataloader = cfg.train_dataloader
    return cfg


def lines(printed, kind):
    return [line for line in printed.splitlines() if line.startswith(f"{kind}:")]


def test_report_of_a_data_set_for_detection(data, tmp_path, capsys):
    assert report(config(data, tmp_path)) == 0
    printed = capsys.readouterr().out
    assert "images: 3, without annotation: 1" in printed
    assert "annotations: 2, with masks: 2, of crowds: 0" in printed
    assert "3 of 3 read: RGB 3; 80x60 to 80x60" in printed
    assert re.search("cat +2 ####", printed)
    assert "val         as train" in printed
    assert "\ntest" not in printed  # no test_cfg
    found = lines(printed, "warning")
    for words in ("under 50 objects", "in training and validation both", "classes without any object: 1 (dog)"):
        assert sum(words in line for line in found) == 1
    assert len(found) == 3


def test_all_errors_are_reported_not_only_the_first(data, tmp_path, capsys):
    data.train["annotations"][0]["category_id"] = 5
    del data.files["train/0.jpg"]
    data.files["train/1.jpg"] = b"no image"
    cfg = config(data, tmp_path)
    cfg.train_dataloader.batch_size = 0
    assert report(cfg) == 2
    printed = capsys.readouterr().out
    errors = lines(printed, "error")
    for name in ("category ids of", "0.jpg", "1.jpg", "batch_size"):
        assert sum(name in line for line in errors) == 1, name
    assert f"errors: {len(errors)}," in printed


def test_images_may_be_annotated_as_they_are_stored(data, tmp_path, capsys):
    data.files = {name: photo(i, (W, H), turned=6) for i, name in enumerate(data.files)}
    cfg = config(data, tmp_path)
    assert report(cfg) == 2
    assert "color_ignore_orientation" in lines(capsys.readouterr().out, "error")[0]
    for split in ("train", "val"):
        cfg[f"{split}_dataloader"].dataset.pipeline[0].color_type = "color_ignore_orientation"
    assert report(cfg) == 0


def test_files_are_a_sample_or_all(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("vitdense.mm.checks.report.FILES_READ", 2)
    data.files["train/1.jpg"] = b"no image"
    cfg = config(data, tmp_path)
    assert report(cfg) == 0
    assert "2 of 3 read" in capsys.readouterr().out
    look(cfg, all_files=True)
    assert "1.jpg" in lines(capsys.readouterr().out, "error")[0]


def test_many_classes_show_the_most_and_the_least_frequent(data, tmp_path, capsys):
    data.train["categories"] = [{"id": i, "name": f"class {i}"} for i in range(50)]
    report(config(data, tmp_path))
    printed = capsys.readouterr().out
    assert "... 10 more ..." in printed
    assert printed.index("class 1 ") < printed.index("class 0 ")


@pytest.mark.parametrize(
    ("rows", "ignored", "status", "said"),
    [
        ({255: 15}, 255, 0, ["2 sky +75 % ####", "255 unlabelled +25 % ####", r"without any pixel: 2 \(cat, dog\)"]),
        ({254: 15, 9: 30}, 254, 2, ["254 unlabelled +25 %", "9 NO CLASS +25 %", "error: .* hold 9"]),
    ],
)
def test_report_of_a_data_set_for_segmentation(rows, ignored, status, said, tmp_path, capsys):
    data, labels, start = Maps(), np.full((H, W), 2, np.uint8), 0
    for value, end in rows.items():
        labels[start:end], start = value, end
    data.maps = dict.fromkeys(data.maps, labels)
    cfg = config_of(data, tmp_path, ("train",))
    cfg.model.decode_head.ignore_index = ignored
    assert report(cfg) == status
    printed = capsys.readouterr().out
    assert "3 images" in printed
    assert all(re.search(line, printed) for line in said)


@pytest.mark.long
def test_command_writes_the_resolved_config(repo, tmp_path, capsys):
    out = tmp_path / "whole.py"
    config = str(repo / "configs/demo/cascade_swin_nano_shapes.py")
    root = f"data_root={tmp_path / 'not_drawn'}"
    assert main(["check", config, "--write", str(out), "--cfg-options", root, "settings.max_iters=7"]) == 0
    assert "not on this disk" in capsys.readouterr().out
    cfg = Config.fromfile(out)
    assert cfg.train_cfg.max_iters == 7
    assert cfg.model.roi_head.bbox_head[0].num_classes == 8
