"""A training reads annotations as `vitdense check` does."""

import json

import pytest
import torch

pytest.importorskip("mmdet")
from vitdense.mm.checks import annotations
from vitdense.mm.config.load import load_config
from vitdense.mm.data.coco import examine


@pytest.fixture
def found(repo, tmp_path, monkeypatch):
    """What the check finds where the annotations of the training data have these changes."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))

    def find(**changes):
        box = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 9, 9], "area": 81} | changes
        images = [{"id": 1, "file_name": "1.jpg", "width": 40, "height": 30}]
        content = {"images": images, "annotations": [box], "categories": [{"id": 1, "name": "person"}]}
        (tmp_path / "annotations").mkdir(exist_ok=True)
        for split in ("train", "val"):
            (tmp_path / f"{split}2017").mkdir(exist_ok=True)
            (tmp_path / f"annotations/instances_{split}2017.json").write_text(json.dumps(content))
        cfg = load_config(repo / "configs/cascade_swin_t_coco.py", {"data_root": f"{tmp_path}/"})
        return [str(error) for error in annotations.find(cfg, ("train",))]

    return find


def test_errors_of_the_file_stop_a_training(found):
    assert found() == []
    (line,) = found(image_id=7, segmentation=[[1, 2, 1e9, 4, 5, 6]])
    assert line.startswith("train_dataloader: ")
    assert "an image that is not in the file: annotations 1" in line
    (line,) = found(segmentation=[[1, 2, 1e9, 4, 5, 6]])
    assert "far outside" in line


def test_images_with_too_much_for_memory_are_named():
    """A million annotations, or large masks of many objects."""
    images = [{"id": i, "file_name": f"{i}.jpg", "width": 10_000, "height": 10_000} for i in (7, 8)]
    box = {"category_id": 1, "bbox": [1, 1, 9, 9], "area": 81}
    boxes = [{"id": i, "image_id": 7, **box} for i in range(30_000)]
    masked = [{"id": -i, "image_id": 8, "segmentation": [[1, 1, 9, 1, 9, 9]], **box} for i in range(1, 51)]
    categories = [{"id": 1, "name": "person"}]
    found = examine({"images": images, "annotations": boxes + masked, "categories": categories})
    assert found.errors == ["1 images have over 20000 annotations; cut them into tiles: images 7"]
    assert found.warnings == ["1 images have masks of over 4 GiB in training; cut them into tiles: images 8"]


def test_a_file_without_errors_is_read_once(found, monkeypatch):
    read = []
    monkeypatch.setattr(annotations, "examine", lambda content: read.append(1) or examine(content))
    found()
    found()
    assert len(read) == 1
    found(area=80)  # another file
    assert len(read) == 2


def test_one_process_of_a_machine_reads(found, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert found(image_id=7) == []
