"""`vitdense new detection --yolo` and `--voc`: what they write and refuse."""

from pathlib import Path

import pytest
from commands import run_command
from PIL import Image

from vitdense.mm.config.load import load_config

OBJECT = "<object><name>{}</name><bndbox><xmin>10</xmin><ymin>10</ymin><xmax>40</xmax><ymax>40</ymax></bndbox></object>"


def yolo():
    for split in ("train", "val"):
        for i in range(2):
            for kind in ("images", "labels"):
                Path("birds", kind, split).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (96, 64)).save(f"birds/images/{split}/{i}.jpg")
            Path(f"birds/labels/{split}/{i}.txt").write_text("1 0.5 0.5 0.5 0.5\n")
    Path("birds/data.yaml").write_text("names: [owl, jay]\ntrain: images/train\nval: images/val\n")
    return "--yolo birds/data.yaml", "birds/images/train"


def voc():
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        Path("birds", folder).mkdir(parents=True)
    for split in ("trainval", "test"):
        Path(f"birds/ImageSets/Main/{split}.txt").write_text(f"{split}0\n{split}1\n")
        objects = OBJECT.format("jay") + OBJECT.format("owl")
        for i in range(2):
            Image.new("RGB", (96, 64)).save(f"birds/JPEGImages/{split}{i}.jpg")
            Path(f"birds/Annotations/{split}{i}.xml").write_text(f"<annotation>{objects}</annotation>")
    return "--voc birds", "birds/JPEGImages"


@pytest.mark.long
@pytest.mark.parametrize("write", [yolo, voc])
def test_a_config_and_files_in_coco_format(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    option, images = write()
    start = ["new", "detection", *option.split()]
    status, printed = run_command([*start, "--method", "cascade", "mine.py"])
    assert (status, "--boxes to train on boxes alone" in printed) == (2, True)
    line = [*start, "--base", "cascade_rcnn_swin_nano_shapes"]
    Path("mine_val.json").write_text("corrected by hand")
    assert run_command([*line, "--boxes", "mine.py"])[0] == 2
    assert Path("mine_val.json").read_text() == "corrected by hand"
    assert not Path("mine_train.json").exists()
    status, printed = run_command([*line, "--boxes", "--force", "mine.py"])
    assert status == 0, printed
    cfg = load_config("mine.py")
    assert sorted(cfg.train_dataloader.dataset.metainfo.classes) == ["jay", "owl"]
    assert cfg.val_evaluator.ann_file == "./mine_val.json"
    assert cfg.train_dataloader.dataset.data_prefix.img == images
    status, printed = run_command([*line, "--boxes", "--val", "0.5", "split.py"])
    assert (status, "to train: 1, to validate: 1" in printed) == (0, True), printed
    for more in ("--images birds", "--yolo birds/data.yaml --voc birds"):
        status, printed = run_command([*line, *more.split(), "other.py"])
        assert (status, f"{option.split()[0]} alone" in printed or "alone" in printed) == (2, True)
