"""`python -m vitdense check`."""

import json
import re

import numpy as np
import pytest
from mmengine.config import Config
from PIL import Image

from vitdense.__main__ import main
from vitdense.mm import checks
from vitdense.mm.checks import config, dry_step, model
from vitdense.mm.checks.report import look, report
from vitdense.mm.config.load import load_config

pytest.importorskip("mmdet")
pytest.importorskip("mmseg")
NAMES = ("red fox", "owl")
LOOP = {"train_cfg": {"max_epochs": 1}, "optim_wrapper": {}, "param_scheduler": None}
LOOP |= {"val_cfg": {}, "val_evaluator": {}}


@pytest.fixture(autouse=True)
def without_models(monkeypatch, request):
    """These configs have no model that can be built."""
    if "detection" in request.fixturenames or "segmentation" in request.fixturenames:
        monkeypatch.setattr(checks, "CHECKS", [one for one in checks.CHECKS if one is not model.build])
        monkeypatch.setattr(dry_step, "find", lambda *_: ())


@pytest.mark.long
@pytest.mark.parametrize(
    ("option", "fault"),
    [
        ({"model.neck.type": "FPM"}, r"model\.neck: .*FPM"),
        ({"model.roi_head.num_stages": "three"}, "model: "),
        ({"optim_wrapper.optimizer.lr": float("nan")}, "optim_wrapper: .*learning rate: nan"),
        ({"train_dataloader.batch_size": 0}, "train_dataloader.batch_size: got 0"),
        ({"default_hooks.timer.type": "Timer"}, r"default_hooks\.timer: .*'Timer'"),
        ({"param_scheduler.0.gamma2": 1}, "param_scheduler.0: .*gamma2"),
    ],
)
def test_what_cannot_be_built_is_an_error(option, fault):
    cfg = load_config("cascade_swin_nano_shapes")
    splits = ("train", "val")
    those = (config.types, model.build, config.batch_size)
    assert [found for check in those for found in check(cfg, splits)] == []
    cfg.merge_from_dict(option)
    (error,) = [found for check in those for found in check(cfg, splits)]
    assert re.match(fault, str(error), re.I), error


@pytest.fixture
def detection(tmp_path):
    """Writes a data set of three images of 40x30 pixels with a box in each but the last; a config for it."""

    def write(exif=None, size=(40, 30), **box):
        images = [{"id": 10 * i, "file_name": f"sub/{i}.jpg", "width": size[0], "height": size[1]} for i in range(3)]
        for image in images:
            path = tmp_path / "images" / image["file_name"]
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 30)).save(path, exif=exif or Image.Exif())
        boxes = [
            {
                "id": i,
                "image_id": 10 * i,
                "category_id": 4,
                "bbox": [1, 2, 9, 9],
                "area": 81,
                "segmentation": [[1, 2, 10, 2, 10, 11, 1, 11]],
                **box,
            }
            for i in range(2)
        ]
        categories = [{"id": 4, "name": NAMES[0]}, {"id": 2, "name": NAMES[1]}]
        content = {"images": images, "annotations": boxes, "categories": categories}
        (tmp_path / "all.json").write_text(json.dumps(content))
        dataset = {
            "type": "CocoDataset",
            "data_root": str(tmp_path),
            "ann_file": "all.json",
            "data_prefix": {"img": "images"},
            "metainfo": {"classes": NAMES},
            "pipeline": [{"type": "LoadImageFromFile"}, {"type": "LoadAnnotations", "with_mask": True}],
        }
        loaders = {f"{split}_dataloader": {"dataset": dataset} for split in ("train", "val")}
        return Config({"default_scope": "mmdet", "model": {"type": "MaskRCNN"}, **LOOP, **loaders})

    return write


def lines(printed, kind):
    return [line for line in printed.splitlines() if line.startswith(f"{kind}:")]


def test_report_of_a_data_set_for_detection(detection, capsys):
    assert report(detection()) == 0
    printed = capsys.readouterr().out
    assert "images: 3, without annotation: 1" in printed
    assert "annotations: 2, with masks: 2, of crowds: 0" in printed
    assert "3 of 3 read: RGB 3; 40x30 to 40x30" in printed
    assert re.search("red fox +2 ####", printed)
    assert "val         as train" in printed
    assert "\ntest" not in printed  # no test_cfg
    found = lines(printed, "warning")
    for words in ("under 50 objects", "in training and validation both", "classes without any object: 1 (owl)"):
        assert sum(words in line for line in found) == 1
    assert len(found) == 3


def test_all_errors_are_reported_not_only_the_first(detection, tmp_path, capsys):
    cfg = detection(category_id=5)
    cfg.train_dataloader.batch_size = 0
    (tmp_path / "images/sub/0.jpg").unlink()
    (tmp_path / "images/sub/1.jpg").write_text("no image")
    assert report(cfg) == 2
    printed = capsys.readouterr().out
    errors = lines(printed, "error")
    for name in ("category ids of", "0.jpg", "1.jpg", "batch_size"):
        assert sum(name in line for line in errors) == 1, name
    assert f"errors: {len(errors)}," in printed


def test_images_may_be_annotated_as_they_are_stored(detection, capsys):
    exif = Image.Exif()
    exif[0x0112] = 6
    cfg = detection(exif)
    assert report(cfg) == 2
    assert "color_ignore_orientation" in lines(capsys.readouterr().out, "error")[0]
    for split in ("train", "val"):
        cfg[f"{split}_dataloader"].dataset.pipeline[0].color_type = "color_ignore_orientation"
    assert report(cfg) == 0


def test_files_are_a_sample_or_all(detection, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("vitdense.mm.checks.report.FILES_READ", 2)
    cfg = detection()
    (tmp_path / "images/sub/1.jpg").write_text("no image")
    assert report(cfg) == 0
    assert "2 of 3 read" in capsys.readouterr().out
    look(cfg, all_files=True)
    assert "1.jpg" in lines(capsys.readouterr().out, "error")[0]


def test_many_classes_show_the_most_and_the_least_frequent(detection, tmp_path, capsys):
    cfg = detection()
    content = json.loads((tmp_path / "all.json").read_text())
    content["categories"] = [{"id": i, "name": f"class {i}"} for i in range(50)]
    (tmp_path / "all.json").write_text(json.dumps(content))
    for split in ("train", "val"):
        cfg[f"{split}_dataloader"].dataset.metainfo.classes = [f"class {i}" for i in range(50)]
    report(cfg)
    printed = capsys.readouterr().out
    assert "... 10 more ..." in printed
    assert printed.index("class 4 ") < printed.index("class 0 ")


@pytest.fixture
def segmentation(tmp_path):
    """Writes a data set of images of 8x8 pixels with label maps; a config for it."""

    def write(labels, **dataset):
        for folder in ("images", "maps"):
            (tmp_path / folder).mkdir()
        for i, pixels in enumerate(labels):
            Image.new("RGB", (8, 8)).save(tmp_path / f"images/{i}.jpg")
            Image.fromarray(np.asarray(pixels, np.uint8)).save(tmp_path / f"maps/{i}.png")
        dataset = {
            "type": "BaseSegDataset",
            "data_root": str(tmp_path),
            "data_prefix": {"img_path": "images", "seg_map_path": "maps"},
            "metainfo": {"classes": NAMES},
            "pipeline": [{"type": "LoadImageFromFile"}, {"type": "LoadAnnotations"}],
            **dataset,
        }
        model = {"type": "EncoderDecoder", "decode_head": {"num_classes": 2}}
        loop = {"train_cfg": {"max_iters": 1}, "param_scheduler": None, "optim_wrapper": {}}
        return Config({"default_scope": "mmseg", "model": model, "train_dataloader": {"dataset": dataset}, **loop})

    return write


def test_report_of_a_data_set_for_segmentation(segmentation, capsys):
    labels = np.ones((8, 8))
    labels[:2] = 255
    assert report(segmentation([labels, labels])) == 0
    printed = capsys.readouterr().out
    assert "2 images" in printed
    assert re.search("1 owl +75 % ####", printed)
    assert re.search("255 unlabelled +25 % ####", printed)
    assert "classes without any pixel: 1 (red fox)" in lines(printed, "warning")[0]


def test_values_without_a_class_are_in_the_report(segmentation, capsys):
    labels = np.ones((8, 8))
    labels[:2], labels[2:4] = 254, 9
    cfg = segmentation([labels, labels])
    cfg.model.decode_head.ignore_index = 254
    assert report(cfg) == 2
    printed = capsys.readouterr().out
    assert "hold 9" in lines(printed, "error")[0]
    assert re.search("254 unlabelled +25 %", printed)
    assert re.search("9 NO CLASS +25 %", printed)


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
