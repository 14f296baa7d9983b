import builtins
import io
import json
import sys
from collections import Counter

import pytest
import torch
from PIL import Image

from vitdense.mm.checks import check, findings
from vitdense.mm.checks.sets import data_sets
from vitdense.mm.config.load import ConfigError, load_config
from vitdense.mm.data import coco
from vitdense.mm.data.shapes import draw_dataset

NAMES = ("cat", "dog", "red fox")
BOX = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 9, 9], "area": 81, "iscrowd": 0}
BOX["segmentation"] = [[1, 2, 10, 2, 10, 11]]
CONTENT = {"images": [{"id": 1, "file_name": "1.jpg", "width": 40, "height": 30}], "annotations": [BOX]}
CONTENT["categories"] = [{"id": i, "name": name} for i, name in enumerate(NAMES)]


@pytest.fixture
def cfg(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    (tmp_path / "annotations").mkdir()
    for split in ("train", "val"):
        (tmp_path / f"{split}2017").mkdir()
        Image.new("RGB", (40, 30)).save(tmp_path / f"{split}2017/1.jpg")
        (tmp_path / f"annotations/instances_{split}2017.json").write_text(json.dumps(CONTENT))
    classes = {f"{split}_dataloader.dataset.metainfo": {"classes": NAMES} for split in ("train", "val", "test")}
    return load_config("mask_rcnn_swin_t_coco", {"data_root": str(tmp_path), **classes})


def test_normalisation_of_other_weights_is_refused_before_training_only(cfg):
    cfg.model.backbone.init_cfg.checkpoint = "vit_base.augreg_in21k"
    with pytest.raises(ConfigError, match=r"data_preprocessor: got mean=\[123.*normalisation='own'"):
        check(cfg, ("train",))
    check(cfg, ("val", "test"))


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (("cat", "dog", "redfox"), r"train2017\.json has no category redfox.*cat, dog, red fox"),
        (("cat", "dog"), r"model\.roi_head\.bbox_head\.num_classes: got 3, expected 2"),
    ],
)
def test_mismatching_classes_are_named(cfg, classes, message):
    cfg.train_dataloader.dataset.metainfo.classes = classes
    with pytest.raises(ConfigError, match=message):
        check(cfg, ("train",))


def test_order_of_a_file_matters_where_a_data_set_does_not_read_by_name(cfg):
    cfg.train_dataloader.dataset.metainfo.classes = NAMES[::-1]
    check(cfg, ("train",))
    cfg.train_dataloader.dataset.type = "CityscapesDataset"
    with pytest.raises(ConfigError, match=r"CityscapesDataset numbers labels in the order of .*vitdense\.CocoDataset"):
        check(cfg, ("train",))


@pytest.mark.long
@pytest.mark.parametrize("key", ["roi_head.bbox_head.1.num_classes", "rpn_head.num_classes"])
def test_classes_of_every_head(key):
    """The number of classes of the data; an RPN has one."""
    cfg = load_config("cascade_swin_nano_shapes")
    check(cfg, ("train", "val"))
    cfg.merge_from_dict({f"model.{key}": 9})
    with pytest.raises(ConfigError, match=key.replace(".", r"\.") + ".* 9"):
        check(cfg, ("train",))


def test_class_list_in_a_file(cfg, tmp_path):
    (tmp_path / "classes.txt").write_text("\n".join(NAMES))
    cfg.val_dataloader.dataset.metainfo.classes = str(tmp_path / "classes.txt")
    check(cfg, ("val",))
    (tmp_path / "classes.txt").write_text("\n".join(NAMES[::-1]))
    with pytest.raises(ConfigError, match="val_dataloader: got the classes"):
        check(cfg, ("val",))


def test_data_sets_inside_wrappers_are_checked(cfg, tmp_path):
    cfg.train_dataloader.dataset = dict(type="RepeatDataset", times=2, dataset=cfg.train_dataloader.dataset)
    check(cfg, ("train",))
    (tmp_path / "annotations/instances_train2017.json").write_text("[1, 2]")
    with pytest.raises(ConfigError, match=r"instances_train2017\.json"):
        check(cfg, ("train",))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="its pathlib keeps an open of its own")
def test_annotation_files_are_read_once(tmp_path, cfg, monkeypatch):
    """Files read by a process that loads a config with masks, which needs the classes, and checks it."""
    coco._overview.cache_clear()
    coco.forget()
    opened, open_file = Counter(), builtins.open

    def count(file, *args, **kwargs):
        opened[str(file).rpartition("/")[2]] += 1
        return open_file(file, *args, **kwargs)

    for module in (io, builtins):  # pathlib calls io.open
        monkeypatch.setattr(module, "open", count)
    for _ in range(2):
        loaded = load_config("mask_rcnn_swin_t_coco", {"data_root": str(tmp_path)})
        assert loaded.train_dataloader.dataset.metainfo.classes == NAMES
        check(loaded, ("train", "val", "test"))
    files = {name: opened[name] for name in ("instances_train2017.json", "instances_val2017.json")}
    assert files == {"instances_train2017.json": 2, "instances_val2017.json": 2}  # its categories, all of it


def test_a_drawn_data_set_on_the_disk_is_checked(tmp_path):
    root = draw_dataset(tmp_path / "shapes", num_train=4, num_val=1, image_size=(64, 64))
    file = root / "annotations/instances_train.json"
    cfg = load_config("cascade_swin_nano_shapes", {"data_root": f"{root}/"})
    assert not any(one.grave for one in findings(cfg, ("train", "val"), data_sets(cfg, ("train", "val"))))
    content = json.loads(file.read_text())
    content["annotations"][0]["image_id"] = 99
    file.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="an image that is not in the file"):
        check(cfg, ("train",))
