"""Oriented boxes of files: every form of corners, and what is wrong with them."""

import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from kinds import photo
from mmengine.registry import DATASETS, METRICS, init_default_scope

from vitdense.__main__ import main
from vitdense.extensions.formats.dota import read_folder
from vitdense.extensions.formats.options import annotations
from vitdense.extensions.oriented.drawn import SHAPES, draw_turned
from vitdense.extensions.oriented.labels import corner_faults, quadrilateral, with_corners
from vitdense.extensions.oriented.metric import write_results
from vitdense.mm.checks import dry_step
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.errors import ConfigError

TURNED = [20.0, 10.0, 50.0, 40.0, 44.0, 48.0, 14.0, 18.0]  # 50 x 10 at 45 degrees, nearly
CLASSES = (*SHAPES,)
OPTIONS = ["--oriented", "--weights", "w.pth", "--epochs", "1"]
SQUARE = [10.0, 10.0, 20.0, 10.0, 20.0, 20.0, 10.0, 20.0]


def annotation(**changes):
    x, y = TURNED[::2], TURNED[1::2]
    box = [min(x), min(y), max(x) - min(x), max(y) - min(y)]
    one = {"id": 1, "image_id": 1, "category_id": 1, "bbox": box, "area": 416.0, "segmentation": [TURNED]}
    return {key: value for key, value in {**one, **changes}.items() if value is not None}


def content(*annotations):
    return {
        "images": [{"id": 1, "file_name": "a.jpg", "width": 80, "height": 60}],
        "annotations": [{**one, "id": i} for i, one in enumerate(annotations, 1)],
        "categories": [{"id": 1, "name": "ship"}],
    }


def said(*annotations):
    return " | ".join(f"{fault}" for fault in corner_faults(content(*annotations), ["ship"]))


def test_cvat_turns_its_straight_box_clockwise():
    one = annotation(segmentation=None, bbox=[20, 20, 40, 10], attributes={"rotation": 90.0})
    corners = np.reshape(quadrilateral(one), (4, 2))  # around (40, 25)
    np.testing.assert_allclose(corners, [[45, 5], [45, 45], [35, 45], [35, 5]], atol=1e-9)
    (own,) = with_corners(content(one))["annotations"]
    np.testing.assert_allclose(own["bbox"], [35, 5, 10, 40], atol=1e-9)
    np.testing.assert_allclose(own["obb"], [40, 25, 40, 10, -math.pi / 2], atol=1e-9)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"segmentation": [TURNED[:4] + TURNED[6:] + TURNED[4:6]]}, "no order along the outline"),
        ({"segmentation": [[20.0, 10.0] * 4]}, "less than 1 pixel of area"),
        ({"segmentation": [TURNED[:6]]}, "no four corners"),
        ({"segmentation": [[*TURNED, 12.0, 12.0]]}, "no four corners"),
        ({"segmentation": None}, "no four corners"),
        ({"attributes": {"rotation": 400}}, "-360 to 360"),
        ({"attributes": {"rotation": "30"}}, "-360 to 360"),
        ({"attributes": {"rotation": 1.2}}, "radians"),
        ({"segmentation": [[math.nan, *TURNED[1:]]]}, "no four corners"),
        ({"segmentation": [["20", *TURNED[1:]]]}, "no four corners"),
        ({"attributes": {"rotation": math.nan}}, "-360 to 360"),
        ({"attributes": {"rotation": True}}, "-360 to 360"),
        ({"segmentation": None, "attributes": {"rotation": 0.0}}, "no object is turned"),
        ({"segmentation": [SQUARE]}, "no object is turned"),
        ({"segmentation": [[x + 100 for x in TURNED]]}, "outside their image"),
    ],
)
def test_faults(changes, what):
    assert what in said(annotation(**changes))


def test_sound_corners():
    assert said(annotation(), annotation(segmentation=[SQUARE]), annotation(segmentation=[TURNED[::-1]])) == ""
    of_cvat = [annotation(segmentation=None, attributes={"rotation": angle}) for angle in (30.0, 0.0)]
    assert said(*of_cvat) == ""  # those that are not turned have 0


def write_texts(root, labels="labelTxt", **lines):
    for split in ("train", "val"):
        for name, text in lines.items():
            for folder, content, suffix in (("images", photo(3), ".jpg"), (labels, text.encode(), ".txt")):
                path = root / split / folder / f"{name}{suffix}"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)


def test_a_folder_of_dota(tmp_path):
    corners = " ".join(map(str, TURNED))
    write_texts(tmp_path, a=f"imagesource:GoogleEarth\ngsd:0.1\n{corners} ship 0\n{corners} plane 1\n", b="")
    found, folder, faults = read_folder(tmp_path, "train")
    assert (faults, folder) == ([], tmp_path / "train/images")
    assert [one["name"] for one in found["categories"]] == ["plane", "ship"]
    objects = [(one["category_id"], one["iscrowd"], one["segmentation"]) for one in found["annotations"]]
    assert objects == [(2, 0, [TURNED]), (1, 1, [TURNED])]


DOTA, YOLO = f"{' '.join(map(str, TURNED))} ship 0", f"0 {' '.join(f'{v / 100}' for v in TURNED)}"


@pytest.mark.parametrize(
    ("sound", "line", "what"),
    [
        (DOTA, "1 2 3 4 5 6 7 ship 0", "expected 8 coordinates"),
        (DOTA, "1 2 3 4 5 6 7 8 9 10 ship 0", "expected 8 coordinates"),
        (DOTA, "1 2 3 4 5 6 7 nan ship 0", "expected 8 coordinates"),
        (DOTA, "1 2 3 4 5 6 7 x ship 0", "expected 8 coordinates"),
        (DOTA, "1 2 3 4 5 6 7 8 ship 7", "0, 1 or 2"),
        (DOTA, "1 2 3 4 5 6 7 8 ship yes", "0, 1 or 2"),
        (DOTA, "1 2 9 9 9 2 1 9 ship 0", "in no order"),
        (DOTA, "1 1 9 1 4 4 1 9 ship 0", "in no order"),
        (DOTA, "1 1 2 2 3 3 4 4 ship 0", "less than 1 pixel"),
        (YOLO, "0 .1 .2 .9 .9 .9 .2 .1 .9", "in no order"),
        (YOLO, "0 .1 .1 .1 .1 .1 .1 .1 .1", "less than 1 pixel"),
        (YOLO, "0 .1 .2 .9 .2 .9 .9", "no four corners"),
        (YOLO, "0 .1 .2 .9 .2 .9 .9 .5 .9 .1 .9", "no four corners"),
        (YOLO, "0 .5 .5 .2 .2", "no four corners"),
        (YOLO, "0 .5 .5 .2 .2 .7", "expected the 4"),
        (YOLO, "0 .1 .2 .9 .2 .9 .9 .1 nan", "shares of the image"),
        (YOLO, "0 10 20 30 20 30 30 10 30", "shares of the image"),
        (YOLO, "5 .1 .2 .9 .2 .9 .9 .1 .9", "got class 5"),
        (YOLO, "ship .1 .2 .9 .2 .9 .9 .1 .9", "ship"),
    ],
)
def test_wrong_lines_are_named(tmp_path, sound, line, what):
    write_texts(tmp_path, "labelTxt" if sound is DOTA else "labels", a=f"{sound}\n{line}")
    (tmp_path / "data.yaml").write_text("names: [ship]\ntrain: train/images\nval: val/images\n")
    given = {"dota": tmp_path, "yolo": None} if sound is DOTA else {"dota": None, "yolo": tmp_path / "data.yaml"}
    others = dict.fromkeys(("voc", "train", "val", "images", "val_images"))
    with pytest.raises(ConfigError, match=what) as caught:
        annotations(SimpleNamespace(**given, **others, oriented=True))
    assert "a.txt:2" in str(caught.value)


def test_nothing_is_written_or_trained_with_wrong_corners(own, tmp_path, capsys):
    """A text file is refused before a config is written, and a COCO file before a training starts."""
    write_texts(tmp_path / "dota", a="1 2 9 9 9 2 1 9 ship 0\n")
    with pytest.raises(SystemExit, match="2"):
        main(["new", "detection", "no.py", "--dota", "dota", *OPTIONS[1:]])
    assert not [*tmp_path.glob("no*")]
    file = tmp_path / "own/annotations/oriented_train.json"
    data = json.loads(file.read_text())
    points = data["annotations"][0]["segmentation"][0]
    points[4:] = points[6:] + points[4:6]
    file.write_text(json.dumps(data))
    options = ["--images", "own/train", "--val-images", "own/val", "--oriented", "--iters", "5"]
    assert main(["new", "detection", "mine.py", *own, *options, "--base", "rfdetr_oriented_nano_shapes"]) == 2
    assert main(["check", "mine.py"]) == 2
    capsys.readouterr()
    with pytest.raises(SystemExit, match="2"):
        main(["train", "mine.py"])
    assert "in no order" in capsys.readouterr().err
    assert not (tmp_path / "work_dirs").exists()


def test_no_dota(tmp_path):
    with pytest.raises(ConfigError, match="labelTxt"):
        read_folder(tmp_path, "train")


def test_results_of_task_1(tmp_path):
    corners = np.reshape(TURNED, (1, 4, 2))
    found = [{"labels": [1], "scores": [0.5], "corners": corners}, {"labels": [], "scores": [], "corners": corners[:0]}]
    write_results(tmp_path / "out", ["plane", "ship"], ["a", "b"], found)
    line = " ".join(f"{x:.2f}" for x in TURNED)
    assert (tmp_path / "out.Task1_ship.txt").read_text() == f"a 0.500000 {line}\n"
    assert (tmp_path / "out.Task1_plane.txt").read_text() == ""


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dry_step, "find", lambda *_: ())
    draw_turned("own", num_train=4, num_val=2, workers=1)
    return [item for split in ("train", "val") for item in (f"--{split}", f"own/annotations/oriented_{split}.json")]


def test_new(own):
    images = ["--images", "own/train", "--val-images", "own/val"]
    assert main(["new", "detection", "mine.py", *own, *images, *OPTIONS]) == 0
    cfg = load_config("mine.py")
    assert cfg.train_dataloader.dataset.type == cfg.val_dataloader.dataset.type == "vitdense.OrientedDataset"
    assert cfg.model.bbox_head.type == "vitdense.OrientedRFDETRHead"
    assert cfg.model.bbox_head.num_classes == 5
    assert cfg.val_evaluator.type == "vitdense.OrientedMetric"
    model = build_model(cfg)
    patterns = cfg.default_hooks.exact_load.fresh
    kept = [key for key in model.state_dict() if any(re.fullmatch(pattern, key) for pattern in patterns)]
    assert {key.split(".")[1] for key in kept} == {"shape", "first_shapes", "classes", "selections"}


def test_new_of_yolo_and_dota(own, tmp_path):
    data = json.loads((tmp_path / "own/annotations/oriented_train.json").read_text())
    corners = {one["image_id"]: one["segmentation"][0] for one in data["annotations"]}
    for image in data["images"]:
        sizes = [image["width"], image["height"]] * 4
        line = " ".join(f"{v / size:.6f}" for v, size in zip(corners.get(image["id"], []), sizes))
        (tmp_path / "own/train" / image["file_name"]).with_suffix(".txt").write_text(f"0 {line}" if line else "")
    (tmp_path / "data.yaml").write_text("names: [thing]\ntrain: own/train\nval: own/train\n")
    assert main(["new", "detection", "y.py", "--yolo", "data.yaml", *OPTIONS]) == 0
    assert load_config("y.py").train_dataloader.dataset.type == "vitdense.OrientedDataset"
    line = " ".join(map(str, TURNED))
    write_texts(tmp_path / "dota", a=f"{line} ship 0\n", b=f"{line} plane 0\n")
    assert main(["new", "detection", "d.py", "--dota", "dota", *OPTIONS[1:]]) == 0
    assert load_config("d.py").model.bbox_head.num_classes == 2


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--oriented", "--method", "cascade"], "--oriented: got --method cascade"),
        (["--oriented", "--masks"], "--oriented: got --masks"),
        (["--dota", "x", "--oriented"], "give --dota alone"),
        (["--keypoints", "--oriented"], "leave all but one out"),
        (["--dota", "x", "--voc", "y"], "give --voc alone"),
        (["--base", "rfdetr_oriented_nano_shapes", "--iters", "5"], "the option for its labels"),
        (["--base", "rfdetr_nano_shapes", "--oriented", "--iters", "5"], "the option for its labels"),
    ],
)
def test_options_that_do_not_fit(own, capsys, options, what):
    with pytest.raises(SystemExit, match="2"):
        main(["new", "detection", "no.py", *own, "--images", "own/train", *options])
    assert what in capsys.readouterr().err


def test_joined_files(own):
    """Joined files count as one, in the data and in the metric; classes meet by name, here in another order."""
    init_default_scope("mmdet")
    files = [
        dict(ann_file=f"annotations/oriented_{split}.json", data_root="own", data_prefix=dict(img=f"{split}/"))
        for split in ("train", "val")
    ]
    datasets = [dict(type="vitdense.OrientedDataset", metainfo=dict(classes=CLASSES[::-1]), **one) for one in files]
    data = DATASETS.build(dict(type="ConcatDataset", datasets=datasets))
    metric = METRICS.build(dict(type="vitdense.OrientedMetric"))
    metric.dataset_meta = {"classes": CLASSES[::-1]}
    for i in range(len(data)):
        info = data.get_data_info(i)
        corners = torch.tensor([one["bbox"] for one in info["instances"]]).reshape(-1, 4, 2)
        found = {
            "bboxes": torch.cat([corners.amin(1), corners.amax(1)], 1),
            "corners": corners,
            "scores": torch.full((len(corners),), 0.9),
            "labels": torch.tensor([one["bbox_label"] for one in info["instances"]], dtype=torch.int64),
        }
        shape = (info["height"], info["width"])
        metric.process({}, [{"img_id": info["img_id"], "ori_shape": shape, "pred_instances": found}])
    assert metric.evaluate(len(data))["coco/oriented_mAP"] == 1.0
