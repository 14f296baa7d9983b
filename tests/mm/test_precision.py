"""`--amp`: where a CPU computes in bfloat16, and what it refuses."""

import platform
from argparse import Namespace
from pathlib import Path

import pytest
import torch

import vitdense
from vitdense.errors import OptionError
from vitdense.layers.onednn import OneDnnLinear
from vitdense.mm import precision
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.errors import ConfigError
from vitdense.mm.precision import Inference
from vitdense.mm.train import launch

CPU_INFO = Path("/proc/cpuinfo")


@pytest.fixture
def _two_gpus(monkeypatch):
    monkeypatch.setattr(precision, "devices", lambda: {"cpu": 1, "cuda": 2})


@pytest.mark.parametrize(("kind", "count"), [("cuda", 2), ("mps", 1), ("xpu", 1)])
def test_devices_match_torch(monkeypatch, kind, count):
    """The CPU and torch's accelerator, if any; a kind without autocast has float32 only."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert precision.devices() == {"cpu": 1}
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(kind))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
    assert precision.devices() == {"cpu": 1, kind: count}
    assert Inference(f"{kind}:{count - 1}", torch.bfloat16).amp == "bfloat16"
    for device in ("cpu", kind, torch.device(kind, count - 1)):
        precision.check_device("--device", device)
    for device in (f"{kind}:{count}", "meta", "cpu:1", "nonsense", "", None):
        with pytest.raises(ConfigError, match=f"--device: got .*{kind}:0"):
            precision.check_device("--device", device)
    monkeypatch.setattr(torch.amp, "is_autocast_available", lambda name: name != kind)
    with Inference(kind).computing():
        assert not torch.overrides._get_current_function_mode_stack()
    with pytest.raises(ConfigError, match=f"no autocast on {kind}"):
        Inference(kind, torch.float16)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"dtype": torch.float64}, "--amp float64 .*expected float32"),
        ({"dtype": torch.float16}, "--amp float16 .*needs a GPU"),
        ({"device": "nonsense"}, "device: got"),
        ({"score_thr": 1.5}, "score_thr: got 1.5.*--score-thr"),
        ({"score_thr": -1}, "score_thr: got"),
        ({"score_thr": float("nan")}, "score_thr: got"),
        ({"tiles": 8}, "tiles: got"),
        ({"tiles": 64, "overlap": 1.0}, "tiles: got"),
    ],
)
def test_options_of_inference_are_checked_once(options, match):
    with pytest.raises(OptionError, match=match):
        Inference(**options)


def test_inference_of_parsed_arguments():
    args = Namespace(config="x.py", amp=None, device="cpu", tiles=64, overlap=0.3, onednn=False)
    assert Inference.of(args) == Inference(tiles=64, overlap=0.3, onednn=False)
    assert Inference.of(Namespace(amp=None), score_thr=0.0) == Inference(score_thr=0.0)


@pytest.mark.usefixtures("_two_gpus")
@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize("has_onednn", [True, False])
@pytest.mark.parametrize(
    ("device", "dtype"), [("cpu", torch.bfloat16), ("cpu", torch.float32), ("cuda:0", torch.float32)]
)
def test_how_a_device_computes(device, dtype, onednn, has_onednn, monkeypatch):
    monkeypatch.setattr(precision, "cpu_has_bfloat16", lambda: True)
    monkeypatch.setattr(precision, "has_onednn", lambda: has_onednn)
    with Inference(device, dtype, onednn=onednn).computing():
        assert torch.is_autocast_enabled("cpu") == (dtype == torch.bfloat16)
        modes = torch.overrides._get_current_function_mode_stack()
    assert [type(mode) for mode in modes] == [OneDnnLinear] * (onednn and has_onednn and device == "cpu")


@pytest.mark.usefixtures("_two_gpus")
def test_what_runs_on_a_cpu_is_logged(monkeypatch):
    kept, lines = [], []
    monkeypatch.setattr(precision, "cpu_has_bfloat16", lambda: True)
    monkeypatch.setattr(precision, "keep_memory", lambda: kept.append(True) or True)
    monkeypatch.setattr(precision, "print_log", lambda line, logger: lines.append(line))
    for nothing in (Inference("cuda"), Inference(onednn=False)):
        nothing.tune_cpu()
    assert not kept
    Inference(dtype=torch.bfloat16).tune_cpu()
    Inference().tune_cpu()
    assert len(kept) == len(lines) == 2
    assert all("memory is kept" in line and "--no-onednn" in line for line in lines)
    assert all("by oneDNN" in line for line in lines) or not precision.has_onednn()


def test_training_and_loading_ask(tmp_path, monkeypatch):
    monkeypatch.setattr(precision, "cpu_has_bfloat16", lambda: False)
    cfg = load_config("cascade_swin_nano_shapes", work_dir=str(tmp_path))
    with pytest.raises(ConfigError, match="--amp bfloat16"):
        launch.prepare_training(cfg, amp="bfloat16")
    with pytest.raises(ConfigError, match="--amp bfloat16"):
        Inference(dtype=torch.bfloat16)
    (tmp_path / "iter_1.pth").touch()
    with pytest.raises(ConfigError, match=r"dtype=torch\.bfloat16"):
        vitdense.load(cfg.filename, tmp_path / "iter_1.pth", dtype=torch.bfloat16)


@pytest.mark.parametrize("name", ["upernet_swin_nano_shapes", "cascade_swin_nano_shapes"])
def test_evaluation_computes_in_bfloat16(name, tmp_path, monkeypatch):
    monkeypatch.setattr(precision, "cpu_has_bfloat16", lambda: True)
    cfg = load_config(name, {"data_root": f"{tmp_path}/shapes/"}, str(tmp_path))
    cfg.test_dataloader.update(num_workers=0, persistent_workers=False)
    cfg.test_dataloader.dataset.draw = {"num_train": 1, "num_val": 1, "image_size": (64, 64)}
    if "ann_file" in cfg.test_evaluator:
        cfg.test_dataloader.dataset.pipeline[1].scale = (64, 64)
        cfg.model.test_cfg.rcnn.update(score_thr=0.0, max_per_img=5)
    model = build_model(cfg)
    torch.save({"meta": {}, "state_dict": model.state_dict()}, tmp_path / "random.pth")
    seen, predict = [], type(model).predict

    def record(*args, **kwargs):
        seen.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
        return predict(*args, **kwargs)

    monkeypatch.setattr(type(model), "predict", record)
    launch.test(cfg, str(tmp_path / "random.pth"), Inference(dtype=torch.bfloat16))
    assert seen == [(True, torch.bfloat16)]


@pytest.mark.skipif(not CPU_INFO.exists() or platform.machine() != "x86_64", reason="needs Linux on x86")
def test_the_question_is_about_an_instruction_of_this_cpu():
    assert precision.cpu_has_bfloat16() == ("avx512_bf16" in CPU_INFO.read_text().split())
