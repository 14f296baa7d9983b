"""The nano recipes on a GPU: the first loss of a CPU, half precision, commands. ``make test WHAT=gpus``."""

import json
import math

import pytest
import torch
from conftest import RECIPES
from mmengine.runner import Runner

import vitdense
from vitdense.__main__ import main
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
NANO = sorted(path.stem for path in RECIPES if path.stem.endswith("_nano_shapes"))
# Losses of masks are of random points, and a GPU draws others; relative.
OF_POINTS = ("eomt_nano_shapes", "mask2former_swin_nano_shapes", "rfdetr_seg_nano_shapes")
DRAWING = ("dino_swin_nano_shapes",)  # has no loss in evaluation mode


def first_loss(cfg, device):
    torch.manual_seed(0)
    model = build_model(cfg).to(device)
    model.eval()
    data = next(iter(Runner.build_dataloader(cfg.train_dataloader, seed=0)))
    data = model.data_preprocessor(data, training=True)
    torch.manual_seed(0)
    with torch.no_grad():
        losses = model.loss(data["inputs"], data["data_samples"])
    return float(model.parse_losses(losses)[0])


@pytest.mark.parametrize("recipe", [name for name in NANO if name not in DRAWING])
def test_the_first_loss_equals_the_loss_on_a_cpu(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    cfg = load_config(recipe, {"data_root": f"{tmp_path}/shapes/"}, str(tmp_path / "work"))
    cfg.train_dataloader.update(num_workers=0, persistent_workers=False)
    cfg.train_dataloader.dataset.draw = dict(num_train=16, num_val=1)
    assert first_loss(cfg, "cuda") == pytest.approx(first_loss(cfg, "cpu"), rel=1e-2 if recipe in OF_POINTS else 1e-3)


def options_of(folder):
    draw = [f"{split}_dataloader.dataset.draw={{'num_train':32,'num_val':4}}" for split in ("train", "val", "test")]
    return [f"data_root={folder}/shapes/", "train_dataloader.num_workers=0", *draw]


def rows_of(work):
    (log,) = work.glob("*/vis_data/scalars.json")
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize("recipe", NANO)
def test_trains_predicts_and_tests_in_half_precision(recipe, precision, tmp_path, capsys):
    work, options = tmp_path / "work", options_of(tmp_path)
    command = ["train", recipe, "--work-dir", str(work), "--amp", precision, "--iters", "6", "--cfg-options", *options]
    assert main(command) == 0, capsys.readouterr()
    rows = rows_of(work)
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses
    assert all(map(math.isfinite, losses))
    assert any(row.get("memory", 0) > 0 for row in rows)  # MB of a GPU
    photo = next(path for path in (tmp_path / "shapes").rglob("*.*") if path.suffix in (".png", ".jpg"))
    for device in ("cuda", "cpu"):
        vitdense.load(str(work), device=device)(str(photo))
    if precision == "float16":
        assert main(["test", str(work), "--cfg-options", *options]) == 0, capsys.readouterr()


def test_trains_on_kept_maps_of_a_frozen_trunk(tmp_path, capsys):
    work = tmp_path / "work"
    command = ["train", "upernet_swin_nano_shapes", "--work-dir", str(work), "--iters", "4", "--views", "1"]
    command += ["--cache-features", str(tmp_path / "maps"), "--cfg-options", *options_of(tmp_path)]
    assert main([*command, "model.backbone.frozen_stages=all"]) == 0, capsys.readouterr()
    assert "the trunk ran for" in capsys.readouterr().out
    assert all(math.isfinite(row["loss"]) for row in rows_of(work) if "loss" in row)


@pytest.mark.parametrize("recipe", ["rfdetr_nano_shapes", "eomt_nano_shapes", "upernet_swin_nano_shapes"])
def test_a_model_trained_on_a_gpu_is_exported(recipe, tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    command = ["train", recipe, "--work-dir", str(tmp_path / "work"), "--iters", "2"]
    assert main([*command, "--cfg-options", *options_of(tmp_path)]) == 0, capsys.readouterr()
    command = ["export", str(tmp_path / "work"), "--to", "onnx", "--unchecked", "--out", str(tmp_path / "model.onnx")]
    assert main(command) == 0, capsys.readouterr()
