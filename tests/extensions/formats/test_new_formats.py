"""`vitdense new detection --yolo` and `--voc`: what they write and refuse."""

from pathlib import Path

import pytest
from commands import run_command, succeed
from kinds import VocFolder, Yolo

from vitdense.mm.config.load import load_config


@pytest.mark.long
@pytest.mark.parametrize(
    ("data", "option", "images"),
    [(Yolo, "--yolo birds/data.yaml", "birds/images/train"), (VocFolder, "--voc birds", "birds/JPEGImages")],
)
def test_a_config_and_files_in_coco_format(data, option, images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data().write(Path("birds"))
    for path in Path("birds").glob("ImageSets/Main/*.txt"):
        path.rename(path.with_stem({"train": "trainval", "val": "test"}[path.stem]))
    start = ["new", "detection", *option.split()]
    status, printed = run_command([*start, "--method", "cascade", "mine.py"])
    assert (status, "--boxes to train on boxes alone" in printed) == (2, True)
    line = [*start, "--base", "cascade_rcnn_swin_nano_shapes"]
    Path("mine_val.json").write_text("corrected by hand")
    assert run_command([*line, "--boxes", "mine.py"])[0] == 2
    assert Path("mine_val.json").read_text() == "corrected by hand"
    assert not Path("mine_train.json").exists()
    succeed([*line, "--boxes", "--force", "mine.py"])
    cfg = load_config("mine.py")
    assert sorted(cfg.train_dataloader.dataset.metainfo.classes) == ["cat", "dog"]
    assert cfg.val_evaluator.ann_file == "./mine_val.json"
    assert cfg.train_dataloader.dataset.data_prefix.img == images
    assert "to train: 2, to validate: 1" in succeed([*line, "--boxes", "--val", "0.4", "split.py"])
    for more in ("--images birds", "--yolo birds/data.yaml --voc birds"):
        status, printed = run_command([*line, *more.split(), "other.py"])
        assert (status, "alone" in printed) == (2, True)
