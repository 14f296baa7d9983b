"""`python -m vitdense check --report`: the page, on data in good order and on data spoiled in many ways at once."""

import argparse
import re

import numpy as np
import pytest
from kinds import Coco, Maps, config_of, square
from mmengine.runner import Runner
from PIL import Image

from vitdense.extensions.report.batch import draw_batch
from vitdense.extensions.report.options import after
from vitdense.extensions.report.pictures import Shown
from vitdense.mm import checks
from vitdense.mm.checks import dry_step, model
from vitdense.mm.checks.report import look
from vitdense.mm.config.load import load_config


@pytest.fixture(autouse=True)
def without_models(monkeypatch):
    monkeypatch.setattr(checks, "CHECKS", [one for one in checks.CHECKS if one is not model.build])
    monkeypatch.setattr(dry_step, "find", lambda *_: ())
    monkeypatch.setattr(checks.data, "FEW", 1)


@pytest.fixture
def data():
    data = Coco({"train": 12, "val": 4})
    data.dataset["type"] = "vitdense.CocoDataset"
    for content in (data.train, data.val):
        content["categories"][1]["name"] = "owl <b>"
    return data


def page_of(cfg, folder, status):
    faults, sets = look(cfg, True)
    assert any(fault.grave for fault in faults) == (status == 2)
    after(argparse.Namespace(report=folder, pictures=None), cfg=cfg, faults=faults, sets=sets)
    assert [path.name for path in folder.iterdir()] == ["report.html"]
    return (folder / "report.html").read_text()


def cards(page):
    found = re.findall(r'<div class="card (error|warning)">(.*?)(?=<div class="card|<h2>)', page, re.S)
    return [(kind, re.sub(r"<[^>]+>", "", text), text.count("<img")) for kind, text in found]


def test_data_in_good_order_have_no_finding(data, tmp_path):
    cfg = config_of(data, tmp_path)
    cfg.train_dataloader.dataset.pipeline.append({"type": "Resize", "scale": (96, 64), "keep_ratio": True})
    page = page_of(cfg, tmp_path / "page", 0)
    assert cards(page) == []
    assert "In good order" in page
    assert page.count("<img") == 4  # of the training, as they are read
    assert "owl &lt;b&gt;" in page
    assert "<b>" not in re.sub(r"<b>(What|\d)", "", page)
    assert not re.search(r"<script|https?:|url\(", page)


SPOILED = [  # kinds, words and the number of pictures; what cannot be drawn has none
    ("error", "polygons with fewer than three points", 1),
    ("error", "image files do not exist", 0),
    ("error", "image files cannot be read", 0),
    ("error", "images have another size", 1),
    ("warning", "classes without any object: 1 (lynx)", 0),
    ("warning", "beside their boxes", 4),  # of six
    ("warning", "over the edge", 1),
    ("warning", "outside their image", 1),
    ("warning", "have no area", 1),
    ("warning", "are turned", 1),
    ("warning", "box and class of another", 1),
]


def test_exactly_the_faults_of_many_kinds_are_found(data, tmp_path):
    content = data.train
    of = {one["id"]: one for one in content["annotations"]}  # 2 and 3 in the first image, and so on
    over, outside, empty, turned = of[2], of[3], of[4], of[6]
    over["bbox"], over["segmentation"] = [70, 8, 20, 20], square(70, 8, 20, 20)
    outside["bbox"], outside["segmentation"] = [200, 8, 30, 24], square(200, 8, 30, 24)
    empty["bbox"], turned["attributes"] = [8, 10, 0, 24], {"rotation": 30.0}
    content["annotations"].append({**of[5], "id": 500})
    of[15]["segmentation"] = [[1, 2, 3, 4]]
    for i in range(16, 25, 2):
        of[i]["segmentation"] = square(50, 6, 20, 20)
    for each in (content, data.val):
        each["categories"].append({"id": 9, "name": "lynx"})
    content["images"][3]["width"] = 90
    data.files["train/4.jpg"] = data.files["train/4.jpg"][:900]
    del data.files["train/5.jpg"]
    found = cards(page_of(config_of(data, tmp_path), tmp_path / "page", 2))
    assert len(found) == len(SPOILED)
    for kind, words, pictures in SPOILED:
        assert [one[::2] for one in found if words in one[1]] == [(kind, pictures)], words
    assert [kind for kind, *_ in found] == sorted(kind for kind, *_ in found)  # the gravest first


def test_joined_files_have_their_own_rows_and_pictures(data, tmp_path):
    data.val["annotations"][0]["bbox"] = [60, 8, 60, 24]
    cfg = config_of(data, tmp_path)
    parts = [cfg[f"{split}_dataloader"].dataset for split in ("train", "val")]
    cfg.train_dataloader.dataset = {"type": "ConcatDataset", "datasets": parts}
    cfg.val_dataloader = cfg.val_cfg = cfg.val_evaluator = None
    page = page_of(cfg, tmp_path / "page", 0)
    assert [(kind, pictures) for kind, text, pictures in cards(page) if "val.json" in text] == [("warning", 1)] * 2
    assert all(f"<h3>train {i}</h3>" in page for i in (1, 2))


def test_label_maps_with_a_value_of_no_class_are_shown(tmp_path):
    data = Maps()
    data.maps["train_maps/0.png"] = np.eye(60, 80, dtype=np.uint8) * 9
    cfg = config_of(data, tmp_path, ("train",))
    faults, (one,) = look(cfg)
    (fault,) = [fault for fault in faults if "hold 9" in str(fault)]
    assert len(list(Shown(one).pictures(fault))) == 1
    assert "<img" in page_of(cfg, tmp_path / "page", 2)


@pytest.mark.parametrize("name", ["cascade_swin_nano_shapes", "upernet_swin_nano_shapes"])
def test_a_picture_per_image_of_the_first_batch(name, tmp_path):
    """A picture is the model's padded image, changed only where objects are drawn."""
    draw = {"num_train": 4, "num_val": 2, "image_size": (96, 128), "workers": 1}
    options = {"data_root": str(tmp_path / "shapes"), "train_dataloader.dataset.draw": draw}
    options |= {"train_dataloader.num_workers": 0, "train_dataloader.persistent_workers": False}
    cfg = load_config(name, {**options, "train_dataloader.batch_size": 3})
    paths = draw_batch(cfg, tmp_path / "pictures")
    assert [path.name for path in paths] == ["train_0.png", "train_1.png", "train_2.png"]
    batch = next(iter(Runner.build_dataloader(cfg.train_dataloader, seed=0)))
    drawn = []
    for path, image, sample in zip(paths, batch["inputs"], batch["data_samples"], strict=True):
        with Image.open(path) as picture:
            height, width = image.shape[1:]
            if name.startswith("upernet"):
                assert picture.size == (256, 256)
            changed = np.asarray(picture)[:height, :width] != image.flip(0).permute(1, 2, 0).numpy()  # RGB
        has_objects = len(sample.gt_instances) > 0 if "gt_instances" in sample else True
        assert changed.any() == has_objects
        drawn.append(has_objects)
    assert any(drawn)
