"""`python -m vitdense check --report`: the page, on data in good order and on data spoiled in many ways at once."""

import argparse
import json
import re

import numpy as np
import pytest
from mmengine.config import Config
from PIL import Image

from vitdense.extensions.report.options import after
from vitdense.extensions.report.pictures import Shown
from vitdense.mm import checks
from vitdense.mm.checks import dry_step, model
from vitdense.mm.checks.report import look

pytest.importorskip("mmdet")
pytest.importorskip("mmseg")
NAMES = ("red fox", "owl <b>")
SIZE = (96, 72)  # width, height
LOOP = {"train_cfg": {"max_epochs": 1}, "optim_wrapper": {}, "param_scheduler": None}
LOOP |= {"val_cfg": {}, "val_evaluator": {}}
RESIZE = {"type": "Resize", "scale": (96, 64), "keep_ratio": True}


@pytest.fixture(autouse=True)
def without_models(monkeypatch):
    """These configs have no model that can be built, and few objects."""
    monkeypatch.setattr(checks, "CHECKS", [one for one in checks.CHECKS if one is not model.build])
    monkeypatch.setattr(dry_step, "find", lambda *_: ())
    monkeypatch.setattr(checks.data, "FEW", 1)


def rectangle(x, y, w, h):
    return [[x, y, x + w, y, x + w, y + h, x, y + h]]


@pytest.fixture
def data(tmp_path):
    """Two splits of images with a rectangle of each class: their contents, to be changed, and a function that writes
    them and returns a config."""
    contents, draw = {}, np.random.default_rng(0)
    for split, number in (("train", 12), ("val", 4)):
        images, objects = [], []
        for i in range(1, number + 1):
            path = tmp_path / split / f"{split}_{i}.jpg"
            path.parent.mkdir(exist_ok=True)
            pixels = draw.integers(0, 90, (SIZE[1], SIZE[0], 3), dtype=np.uint8)
            images.append({"id": i, "file_name": path.name, "width": SIZE[0], "height": SIZE[1]})
            for j in (0, 1):
                x, y, w, h = 8 + 40 * j, 6 + 2 * i, 30, 24
                pixels[y : y + h, x : x + w, j] = 220
                one = {"id": 10 * i + j, "image_id": i, "category_id": 4 + j, "bbox": [x, y, w, h], "area": w * h}
                objects.append({**one, "iscrowd": 0, "segmentation": rectangle(x, y, w, h)})
            Image.fromarray(pixels).save(path)
        categories = [{"id": 4 + j, "name": name} for j, name in enumerate(NAMES)]
        contents[split] = {"images": images, "annotations": objects, "categories": categories}

    def write():
        loaders = {}
        for split, content in contents.items():
            (tmp_path / f"{split}.json").write_text(json.dumps(content))
            dataset = {"type": "vitdense.CocoDataset", "data_root": str(tmp_path), "ann_file": f"{split}.json"}
            classes = [category["name"] for category in content["categories"]]
            dataset |= {"data_prefix": {"img": split}, "metainfo": {"classes": classes}}
            steps = [{"type": "LoadImageFromFile"}, {"type": "LoadAnnotations", "with_mask": True}, RESIZE]
            loaders[f"{split}_dataloader"] = {"dataset": {**dataset, "pipeline": steps}}
        return Config({"default_scope": "mmdet", "model": {"type": "MaskRCNN"}, **LOOP, **loaders})

    return contents, write


def page_of(cfg, folder, status):
    faults, sets = look(cfg, True)
    assert any(fault.grave for fault in faults) == (status == 2)
    after(argparse.Namespace(report=folder, pictures=None), cfg=cfg, faults=faults, sets=sets)
    assert [path.name for path in folder.iterdir()] == ["report.html"]
    return (folder / "report.html").read_text()


def cards(page):
    """Kind, text and number of pictures of every fault."""
    found = re.findall(r'<div class="card (error|warning)">(.*?)(?=<div class="card|<h2>)', page, re.S)
    return [(kind, re.sub(r"<[^>]+>", "", text), text.count("<img")) for kind, text in found]


def test_data_in_good_order_have_no_finding(data, tmp_path):
    _, write = data
    page = page_of(write(), tmp_path / "page", 0)
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
    contents, write = data
    content = contents["train"]
    of = {one["id"]: one for one in content["annotations"]}
    over, outside, empty, turned = of[10], of[11], of[20], of[30]
    over["bbox"], over["segmentation"] = [70, 8, 60, 24], rectangle(70, 8, 60, 24)
    outside["bbox"], outside["segmentation"] = [200, 8, 30, 24], rectangle(200, 8, 30, 24)
    empty["bbox"], turned["attributes"] = [8, 10, 0, 24], {"rotation": 30.0}
    content["annotations"].append({**of[21], "id": 500})
    of[71]["segmentation"] = [[1, 2, 3, 4]]
    for i in range(80, 121, 10):
        of[i]["segmentation"] = rectangle(60, 6, 20, 20)
    for each in contents.values():
        each["categories"].append({"id": 9, "name": "lynx"})
    content["images"][3]["width"] = 90
    cut, absent = (tmp_path / f"train/train_{i}.jpg" for i in (5, 6))
    cut.write_bytes(cut.read_bytes()[:900])
    absent.unlink()
    found = cards(page_of(write(), tmp_path / "page", 2))
    assert len(found) == len(SPOILED)
    for kind, words, pictures in SPOILED:
        assert [one[::2] for one in found if words in one[1]] == [(kind, pictures)], words
    assert [kind for kind, *_ in found] == sorted(kind for kind, *_ in found)  # the gravest first


def test_joined_files_have_their_own_rows_and_pictures(data, tmp_path):
    contents, write = data
    contents["val"]["annotations"][0]["bbox"] = [80, 8, 60, 24]
    cfg = write()
    parts = [cfg[f"{split}_dataloader"].dataset for split in ("train", "val")]
    cfg.train_dataloader.dataset = {"type": "ConcatDataset", "datasets": parts}
    cfg.val_dataloader = cfg.val_cfg = cfg.val_evaluator = None
    page = page_of(cfg, tmp_path / "page", 0)
    assert [(kind, pictures) for kind, text, pictures in cards(page) if "val.json" in text] == [("warning", 1)] * 2
    assert all(f"<h3>train {i}</h3>" in page for i in (1, 2))


def test_label_maps_with_a_value_of_no_class_are_shown(tmp_path):
    for folder in ("images", "maps"):
        (tmp_path / folder).mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "images/0.jpg")
    Image.fromarray(np.eye(8, dtype=np.uint8) * 9).save(tmp_path / "maps/0.png")
    dataset = {
        **{"type": "BaseSegDataset", "data_root": str(tmp_path), "metainfo": {"classes": NAMES}},
        "data_prefix": {"img_path": "images", "seg_map_path": "maps"},
        "pipeline": [{"type": "LoadImageFromFile"}, {"type": "LoadAnnotations"}],
    }
    model = {"type": "EncoderDecoder", "decode_head": {"num_classes": 2}}
    loop = {"train_cfg": {"max_iters": 1}, "param_scheduler": None, "optim_wrapper": {}}
    cfg = Config({"default_scope": "mmseg", "model": model, "train_dataloader": {"dataset": dataset}, **loop})
    faults, (one,) = look(cfg)
    (fault,) = [fault for fault in faults if "hold 9" in str(fault)]
    assert len(list(Shown(one).pictures(fault))) == 1
    assert "<img" in page_of(cfg, tmp_path / "page", 2)
