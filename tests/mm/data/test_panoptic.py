"""Panoptic data: files, labels, panoptic quality, and what `new`, `check` and `predict` make of them."""

import json
from pathlib import Path

import numpy as np
import pytest
from mmengine.registry import DATASETS, init_default_scope
from PIL import Image

from vitdense.__main__ import main
from vitdense.mm.checks import check
from vitdense.mm.config.files import find_config
from vitdense.mm.config.load import load_config
from vitdense.mm.data.panoptic import colours_of_ids, examine, ids_of_colours, read
from vitdense.mm.data.shapes import CLASSES, draw_dataset
from vitdense.mm.errors import ConfigError
from vitdense.mm.train.metrics import count_segments


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    return draw_dataset(tmp_path_factory.mktemp("data") / "shapes", num_train=8, num_val=4, image_size=(64, 96))


@pytest.fixture
def reversed_files(shapes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for split in ("train", "val"):
        Path(split).symlink_to(shapes / split)
        Path(f"ids_{split}").symlink_to(shapes / "panoptic" / split)
        content = json.loads((shapes / f"panoptic/panoptic_{split}.json").read_text())
        content["categories"] = [{**one, "id": 7 * one["id"]} for one in content["categories"][::-1]]
        for annotation in content["annotations"]:
            for segment in annotation["segments_info"]:
                segment["category_id"] *= 7
        Path(f"{split}.json").write_text(json.dumps(content))


def build(cfg, split):
    init_default_scope("mmdet")
    return DATASETS.build(cfg[f"{split}_dataloader"].dataset)


def test_colours_and_ids():
    ids = np.array([[0, 1, 255], [256, 65535, 2**24 - 1]])
    colours = colours_of_ids(ids)
    assert colours[1, 0].tolist() == [0, 1, 0]
    np.testing.assert_array_equal(ids_of_colours(colours), ids)


def test_segments_of_the_shapes_are_their_instances(shapes):
    truth = json.loads((shapes / "annotations/instances_val.json").read_text())
    assert list(examine(read(shapes / "panoptic/panoptic_val.json")).counts) == [*CLASSES, "background"]
    content = json.loads((shapes / "panoptic/panoptic_val.json").read_text())
    for annotation in content["annotations"]:
        instances = [one for one in truth["annotations"] if one["image_id"] == annotation["image_id"]]
        *things, background = annotation["segments_info"]
        keys = ("category_id", "iscrowd", "bbox", "area")
        want = [[one[key] for key in keys] for one in instances if one["area"]]
        assert [[one[key] for key in keys] for one in things] == want
        assert background["category_id"] == len(CLASSES) + 1
        ids = ids_of_colours(np.array(Image.open(shapes / "panoptic/val" / annotation["file_name"])))
        labels = np.array(Image.open(shapes / "semantic/val" / annotation["file_name"]))
        np.testing.assert_array_equal(ids == background["id"], labels == 0)
    assert any(one["iscrowd"] for item in content["annotations"] for one in item["segments_info"])


def test_labels_are_things_then_stuff_whatever_the_order_of_the_file(shapes, reversed_files):
    cfg = load_config("eomt_nano_shapes", {"data_root": f"{shapes}/"})
    for split in ("train", "val"):
        cfg[f"{split}_dataloader"].dataset.draw = dict(num_train=8, num_val=4, image_size=(64, 96))
    own = build(cfg, "val")
    dataset = cfg.val_dataloader.dataset
    dataset.update(type="vitdense.PanopticDataset", data_root="", ann_file="val.json")
    dataset.update(data_prefix=dict(img="val", seg="ids_val"))
    del dataset["draw"]
    other = build(cfg, "val")
    assert other.metainfo["thing_classes"] == CLASSES[::-1]
    assert other.metainfo["classes"][-1] == "background"
    for i in range(len(own)):
        a, b = own[i]["data_samples"], other[i]["data_samples"]
        names = [[x.metainfo["classes"][label] for label in s.gt_instances.labels] for s, x in ((a, own), (b, other))]
        assert names[0] == names[1]
        assert (a.gt_sem_seg.sem_seg == 8).equal(b.gt_sem_seg.sem_seg == 8)
        assert a.gt_sem_seg.sem_seg.unique().tolist() == sorted({8, *a.gt_sem_seg.sem_seg.unique().tolist()})


def grid(text):
    return np.array([[int(c) for c in row] for row in text.split()])


def test_panoptic_quality_by_hand():
    truth = grid("11122 11122 11133 00033")
    segments = [{"id": i, "category": kind, "is_crowd": i == 3} for i, kind in ((1, 0), (2, 1), (3, 0))]
    found = grid("44455 44455 44666 77766")
    # 4 is segment 1, 8 pixels of 9; 5 is segment 2; 6 lies in the crowd but for one pixel, 7 where nothing is
    counts = count_segments(truth, segments, found, {4: 0, 5: 1, 6: 0, 7: 1}, 2)
    np.testing.assert_allclose(counts, [[8 / 9, 1, 0, 0], [1, 1, 0, 0]])
    counts = count_segments(truth, segments, found, {4: 1, 5: 1, 6: 1, 7: 1}, 2)  # another class
    np.testing.assert_allclose(counts, [[0, 0, 0, 1], [1, 1, 2, 0]])
    counts = count_segments(truth, segments, np.zeros_like(truth), {}, 2)
    np.testing.assert_allclose(counts, [[0, 0, 0, 1], [0, 0, 0, 1]])


@pytest.mark.long
@pytest.mark.parametrize(
    "options", ["--val val.json --val-images val --val-segments ids_val", "--val 0.25 --base eomt_nano_shapes"]
)
def test_new_panoptic_with_classes_that_the_base_does_not_have(reversed_files, options, capsys):
    for split in ("train", "val"):
        content = json.loads(Path(f"{split}.json").read_text())
        content["categories"].append({"id": 99, "name": "cup", "isthing": 1})
        Path(f"{split}.json").write_text(json.dumps(content))
    line = f"new panoptic --train train.json --images train --segments ids_train {options} --iters 100 my.py"
    assert main(line.split()) == 0
    assert "classes of things: 9, of stuff: 1" in capsys.readouterr().out
    cfg = load_config("my.py")
    for part in (cfg.model.panoptic_head, cfg.model.panoptic_fusion_head):
        assert (part.num_things_classes, part.num_stuff_classes) == (9, 1)
    assert cfg.train_dataloader.dataset.metainfo.classes == (*CLASSES[::-1], "cup", "background")
    (hook,) = cfg.custom_hooks
    assert hook.ends[-1] < cfg.train_cfg.max_iters == 100
    build(cfg, "train")[0]
    cfg.model.panoptic_head.num_things_classes = 8
    with pytest.raises(ConfigError, match="9 classes of things, but num_things_classes"):
        check(cfg, ("train",))


def test_joined_panoptic_data_with_other_classes_match_by_name(reversed_files):
    """The second file has its stuff first, and a class of its own."""
    first, second = (json.loads(Path(f"{split}.json").read_text()) for split in ("train", "val"))
    second["categories"].reverse()
    second["categories"].insert(0, {"id": 1000, "name": "sky", "isthing": 0})
    Path("val.json").write_text(json.dumps(second))
    own = dict(type="vitdense.PanopticDataset", pipeline=[])
    splits = {split: dict(img=split, seg=f"ids_{split}") for split in ("train", "val")}
    parts = [dict(own, ann_file=f"{split}.json", data_prefix=of) for split, of in splits.items()]
    joined = dict(_delete_=True, type="ConcatDataset", datasets=parts)
    base = f"_base_ = {str(find_config('eomt_nano_shapes'))!r}\ndata_root = ''"
    Path("mine.py").write_text(f"{base}\ntrain_dataloader = dict(dataset={joined})\n")
    cfg = load_config("mine.py")
    init_default_scope("mmdet")
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    classes = dataset.metainfo["classes"]
    assert set(classes) == {*CLASSES, "background", "sky"}
    assert set(classes[:8]) == set(CLASSES)
    head = cfg.model.panoptic_head
    assert (head.num_things_classes, head.num_stuff_classes) == (8, 2)
    for content, start in ((first, 0), (second, 8)):
        names = {one["id"]: one["name"] for one in content["categories"]}
        for i, annotation in enumerate(content["annotations"]):
            found = {one["id"]: classes[one["category"]] for one in dataset.get_data_info(start + i)["segments_info"]}
            assert found == {one["id"]: names[one["category_id"]] for one in annotation["segments_info"]}
