"""The tools as scripts, on a few small images."""

import json
import runpy
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from commands import environment, start_tool
from conftest import REPO
from mmengine.config import Config
from mmengine.logging import MMLogger
from pycocotools.coco import COCO

from vitdense.mm.checkpoints import read_checkpoint
from vitdense.mm.config import model_index as published
from vitdense.mm.config.diff import differences, read_saved

pytestmark = [pytest.mark.long, pytest.mark.commands]

# The demos' configs, made tiny: 12 + 4 images of 96 pixels, six iterations.
CONFIG = "configs/demo/cascade_swin_nano_shapes.py"
SHRINK = """
_base_ = {base!r}
draw = dict(num_train=12, num_val=4, image_size=(96, 96))
data_root = {root!r}
train_dataloader = dict(batch_size=2, dataset=dict(data_root=data_root, draw=draw))
val_dataloader = dict(batch_size=2, dataset=dict(data_root=data_root, draw=draw))
test_dataloader = val_dataloader
train_cfg = dict(max_iters=6, val_interval=6)
param_scheduler = [dict(type="LinearLR", start_factor=0.1, by_epoch=False, begin=0, end=6)]
default_hooks = dict(checkpoint=dict(interval=3, save_best={best!r}), logger=dict(interval=1))
model = dict(backbone=dict(drop_path_rate=0.3))  # random depth: resuming must restore it too
"""
OF_DETECTORS = """
val_evaluator = dict(ann_file=data_root + "annotations/instances_val.json")
test_evaluator = val_evaluator
"""
OF_SEGMENTORS = """
model.update(data_preprocessor=dict(size=(96, 96)))
"""


def shrunk(name, folder):
    best, more = ("mIoU", OF_SEGMENTORS) if "upernet" in name else ("coco/bbox_mAP", OF_DETECTORS)
    base, root = str(REPO / f"configs/demo/{name}.py"), f"{folder}/shapes/"
    return SHRINK.format(base=base, root=root, best=best) + more


def printed_by(*words):
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPO, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def tool(name, *args):
    return printed_by(f"tools/{name}.py", *args)


@pytest.fixture
def tool_here(monkeypatch, capsys):
    def run(name, *args):
        monkeypatch.chdir(REPO)
        monkeypatch.setattr(MMLogger, "_instance_dict", {})  # a logger writes into what pytest closes after a test
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, args)])
        try:
            runpy.run_path(str(REPO / "tools" / f"{name}.py"), run_name="__main__")
        except SystemExit as end:
            return int(end.code or 0), capsys.readouterr()
        return 0, capsys.readouterr()

    return run


def watched(logger):
    pictures = ["default_hooks.visualization.draw=True", "default_hooks.visualization.interval=1"]
    return [*(["--log-to", logger] if find_spec(logger) else []), "--cfg-options", *pictures]


def test_a_metric_without_a_value_is_null(tool_here, tmp_path, monkeypatch):
    metrics = {"mAP": 0.5, "mAP_s": float("nan")}
    monkeypatch.setattr("vitdense.mm.train.launch.test", lambda *args, **_: args[3](metrics))
    weights, out = tmp_path / "model.pth", tmp_path / "metrics.json"
    weights.touch()
    assert tool_here("test", CONFIG, weights, "--out", out)[0] == 0
    assert json.loads(out.read_text()) == {"mAP": 0.5, "mAP_s": None}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    config = folder / "tiny.py"
    config.write_text(shrunk("cascade_swin_nano_shapes", folder))
    return config


@pytest.fixture(scope="module")
def trained(tiny) -> Path:
    printed = tool("train", tiny, "--work-dir", tiny.parent / "whole", *watched("tensorboard"))
    assert all(words in printed for words in ("eta:", "mmcv ops in use: ", "coco/bbox_mAP:"))
    config, last = tiny.parent / "whole/tiny.py", printed.splitlines()[-2:]
    assert last[0].endswith(f" {config} {config.parent}")
    assert last[1].endswith(f" {config} {config.parent} IMAGES")
    assert config.is_file()
    return config.parent


def test_killed_and_resumed_run_has_bit_identical_weights(tiny, trained):
    folder = tiny.parent / "killed"
    run = start_tool("train", tiny, "--work-dir", folder)
    noted = folder / "last_checkpoint"  # written right after iteration 3 of 6, in the middle of the pass over the data
    while not (noted.exists() and noted.read_text()):
        assert run.poll() is None, "training ended before its first checkpoint"
        time.sleep(0.002)
    workers = psutil.Process(run.pid).children(recursive=True)
    assert any(worker.is_running() for worker in workers)
    run.kill()
    run.wait()
    _, alive = psutil.wait_procs(workers, timeout=30)  # torch looks every five seconds
    assert [worker for worker in alive if worker.status() != psutil.STATUS_ZOMBIE] == []
    assert not (folder / "iter_6.pth").exists()
    assert "resumed epoch: 0, iter: 3" in tool("train", tiny, "--work-dir", folder, "--resume")
    files = trained / "iter_3.pth", trained / "iter_6.pth", folder / "iter_6.pth"
    saved = [read_checkpoint(str(path)) for path in files]
    start, want, got = (checkpoint["state_dict"] for checkpoint in saved)
    assert want.keys() == got.keys()
    assert [key for key in want if not torch.equal(want[key], got[key])] == []
    assert not all(torch.equal(want[key], start[key]) for key in want)  # training continued
    losses = [checkpoint["message_hub"]["log_scalars"]["train/loss"].data[0].tolist() for checkpoint in saved]
    assert [len(history) for history in losses] == [3, 6, 6]
    assert losses[2] == losses[1]


def test_tensorboard_has_losses_metrics_and_pictures(trained):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    (folder,) = trained.glob("*/vis_data")
    log = events.EventAccumulator(str(folder)).Reload()
    assert [event.step for event in log.Scalars("loss")] == [1, 2, 3, 4, 5, 6]
    assert [event.step for event in log.Scalars("coco/segm_mAP")] == [6]
    assert log.Tags()["images"] == ["val_img"]


def test_the_printed_config_is_the_one_that_runs(tiny, trained, tool_here, tmp_path):
    options = ["--work-dir", str(trained), "--log-to", "tensorboard", "--batch-size", "1", "--lr", "0.5"]
    status, written = tool_here("train", tiny, *options, "--resume", "--print-config")
    assert status == 0
    (tmp_path / "printed.py").write_text(written.out)
    printed = Config.fromfile(tmp_path / "printed.py")
    assert printed.resume
    assert printed.load_from == str(trained / "iter_6.pth")
    assert printed.train_dataloader.batch_size == 1
    assert printed.optim_wrapper.optimizer.lr == 0.5
    ran = read_saved(read_checkpoint(printed.load_from))
    (differs,) = differences(ran, printed.to_dict(), ("optim_wrapper", "param_scheduler", "train_cfg"))
    assert differs.startswith("optim_wrapper.optimizer.lr: 0.5, ")


def test_a_work_folder_is_tested_without_changing_it(tiny, trained, tool_here):
    config = (trained / "tiny.py").read_text()
    before = sorted(trained.iterdir())
    status, printed = tool_here("test", trained, "--cfg-options", "model.test_cfg.rcnn.score_thr=1.1")
    assert status == 0
    assert "coco/segm_mAP" in printed.out
    for line in ("model.test_cfg.rcnn.score_thr: 1.1, in the checkpoint 0.05", "no box was predicted"):
        assert line in printed.out + printed.err
    assert (trained / "tiny.py").read_text() == config
    assert sorted(trained.iterdir()) == sorted([*before, trained / "test"])
    image = tiny.parent / "shapes/val/000001.jpg"
    assert tool_here("predict", trained, image, "--out-dir", tiny.parent / "alone")[0] == 0
    assert (tiny.parent / "alone/000001.jpg").is_file()
    named = next(trained.glob("iter_*.pth"))
    status, printed = tool_here("predict", trained, named, image, "--out-dir", tiny.parent / "named")
    assert (status, [path.name for path in (tiny.parent / "named").glob("*.jpg")]) == (0, ["000001.jpg"])
    status, printed = tool_here("predict", tiny, image)
    assert (status, "alone, no published model; expected a checkpoint" in printed.err) == (2, True)


def test_export_of_the_maps_of_a_detector(tiny, trained, tool_here):
    out = tiny.parent / "detector.pt2"
    options = ["--to", "pt2", "--maps", "--static", 97, 131, "--half", "--out", out]
    status, printed = tool_here("export", tiny, trained, *options)
    assert status == 0
    assert "map0 [1, 32, 25, 33]" in printed.out
    described = {"classes": ""}
    program = torch.export.load(out, extra_files=described).module()
    maps = program(torch.zeros(1, 3, 97, 131, dtype=torch.float16))
    assert list(maps) == [f"{name}{i}" for name in ("map", "scores", "boxes") for i in range(5)]
    assert maps["map0"].dtype == torch.float16
    assert len(json.loads(described["classes"])) == 8


def test_predict_writes_a_coco_data_set_by_option(tiny, trained, tool_here):
    out = tiny.parent / "dataset"
    options = ["--out-dir", out, "--format", "dataset"]
    assert tool_here("predict", tiny, trained, tiny.parent / "shapes/val/*.jpg", *options)[0] == 0
    truth, coco = COCO(str(tiny.parent / "shapes/annotations/instances_val.json")), COCO(str(out / "predictions.json"))
    for key in ("id", "file_name"):
        assert [image[key] for image in coco.dataset["images"]] == [image[key] for image in truth.dataset["images"]]
    for found, category in zip(coco.dataset["categories"], truth.dataset["categories"]):
        assert (found["id"], found["name"]) == (category["id"], category["name"])


def test_predict_with_a_published_model_takes_several_images(tiny, trained, tool_here, monkeypatch):
    row = SimpleNamespace(name="x", address=str(trained / "iter_6.pth"), licence="", figures={}, config=str(tiny))
    monkeypatch.setattr(published, "find_published", {"of_others": row}.get)
    out, images = tiny.parent / "published", sorted((tiny.parent / "shapes/val").glob("*.jpg"))[:2]
    assert tool_here("predict", "of_others", *images, "--out-dir", out)[0] == 0
    assert all((out / image.name).is_file() for image in images)


def test_a_folder_of_data_that_does_not_exist_is_one_message(tool_here, tmp_path):
    options = ["--work-dir", tmp_path / "wrong", "--cfg-options", "data_root=/nowhere"]
    status, printed = tool_here("train", "configs/cascade_swin_t_coco.py", *options)
    last = printed.err.strip().splitlines()[-1]
    assert (status, last[:7]) == (2, "error: ")
    assert "/nowhere/annotations" in last


def test_flops_prints_a_table_or_json(tool_here):
    status, printed = tool_here("flops", CONFIG, "--shape", 256, 256, "--json")
    assert status == 0
    result = json.loads(printed.out)
    assert result["backbone"]["gmacs"] < result["gmacs"]
    assert result["backbone"]["params_m"] < result["params_m"]
    assert tool_here("flops", CONFIG)[1].out.strip().splitlines()[-1].startswith("total")


@pytest.fixture(scope="module")
def segmentor(tiny) -> Path:
    config, folder = tiny.parent / "segmentor.py", tiny.parent / "segmentor"
    config.write_text(shrunk("upernet_swin_nano_shapes", tiny.parent))
    assert "mIoU:" in tool("train", config, "--work-dir", folder, *watched("wandb"))
    return folder


@pytest.mark.slow
def test_wandb_has_losses_metrics_and_pictures(segmentor):
    pytest.importorskip("wandb")
    (folder,) = segmentor.glob("*/vis_data/wandb/offline-run-*")
    (log,) = folder.glob("run-*.wandb")
    assert all(name in log.read_bytes() for name in (b"decode.loss_ce", b"mIoU"))
    assert len(list(folder.glob("files/media/images/*"))) == 2


@pytest.mark.slow
def test_segmentor_with_test_time_augmentation_and_sliding_windows(segmentor):
    windows = ["mode=slide", "crop_size=(64,64)", "stride=(32,32)"]
    options = ["--cfg-options", *(f"model.test_cfg.{option}" for option in windows)]
    out = segmentor.parent / "metrics.json"
    command, found = ["test", segmentor, "--out", out], {}
    for name, more in {"whole": [], "tta": ["--tta"], "windows": ["--tta", *options]}.items():
        assert "mIoU" in tool(*command, *more)
        found[name] = tuple(json.loads(out.read_text()).values())
    assert len(set(found.values())) == 3, found  # every option changes the result
