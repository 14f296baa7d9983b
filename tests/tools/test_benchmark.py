"""`vitdense benchmark`: one run as a user's, and the pairs of models it times."""

import json
import sys

import pytest
import torch
from conftest import REPO, needs_research
from mmengine import Config
from test_tools import tool

import benchmark
import counting
import measuring
from cost import DEVICES
from vitdense.families import find_model

pytestmark = [pytest.mark.long, pytest.mark.commands]


def test_script_prints_ratios():
    options = ["--shape", "64", "96", "--rounds", "1", "--threads", "1", "--json"]
    printed = tool("benchmark", "swin_tiny", *options).splitlines()
    results = [json.loads(line) for line in printed if line.startswith("{")]
    assert [result["mode"] for result in results] == ["eval", "train"]
    assert all(result["times_faster"] > 0 for result in results)
    assert all(result["peak_mib"].keys() == {"vitdense", "mmdet"} for result in results)


@pytest.mark.parametrize(
    ("model", "peer", "shape", "baseline"),
    [
        ("swinv2_tiny", "", (64, 96), "timm"),
        ("deit_tiny", "mmseg", (64, 96), "mmseg"),
        ("mvitv2_tiny", "", (64, 64), "timm"),
        ("mvitv2_tiny", "mmdet:swin_tiny", (64, 96), "mmdet:swin_tiny"),
    ],
)
def test_baseline_has_maps_of_the_same_shapes(model, peer, shape, baseline):
    pytest.importorskip(baseline.partition(":")[0])
    models = measuring.pair(model, peer, shape)
    assert list(models) == ["vitdense", baseline]
    with torch.no_grad():
        ours, theirs = ([out.shape for out in run(torch.randn(1, 3, *shape))] for _, run in models.values())
    assert ours == theirs


@pytest.mark.parametrize("model", ["swinv2_tiny", "mvitv2_tiny"])
def test_both_loaders_restore_the_weights(model):
    ours, _ = measuring.pair(model, "timm", (64, 64))["vitdense"]
    state = {key: x.clone() for key, x in ours.state_dict().items()}
    for load in measuring.loading(ours).values():
        for parameter in ours.parameters():
            parameter.data.zero_()
        load()
        assert all(torch.equal(x, state[key]) for key, x in ours.state_dict().items() if not key.startswith("norm"))


@pytest.mark.parametrize(
    ("model", "peer", "shape", "named"),
    [
        ("swin_tinny", "", (64, 64), "swin_tiny"),
        ("swin_tiny", "mmseg", (64, 64), "--peer"),
        ("swin_tiny", "mmdet:resnet", (64, 64), "resnet"),
        ("mvitv2_tiny", "", (64, 96), "--shape"),
        ("deit3_small", "mmseg", (64, 64), "LayerScale"),
        ("deit_tiny", "", (60, 64), "partial patches"),
        pytest.param("nat_mini", "", (64, 64), "no other project has nat_mini", marks=needs_research),
        pytest.param("resmlp_small_12", "mmpretrain", (64, 64), "blocks other than Mixer's", marks=needs_research),
    ],
)
def test_baseline_that_does_not_exist_is_an_error(model, peer, shape, named):
    with pytest.raises(ValueError, match=named):
        measuring.pair(model, peer, shape)


# Counting


def run_main(monkeypatch, *options):
    monkeypatch.setattr(sys, "argv", ["benchmark.py", *options])
    benchmark.main()


def test_counts_of_both_models_without_drop_path(monkeypatch, capsys):
    options = ["--count", "--shape", "32", "32", "--batch", "2", "--device-model", "a100", "--top", "99", "--json"]
    run_main(monkeypatch, "deit_tiny", *options)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["dtype"], row["pass"], row["model"]) for row in rows] == [
        (dtype, step, model)
        for dtype in ("float32", "bfloat16")
        for step in ("forward", "forward+backward")
        for model in ("vitdense", "timm")
    ]
    for row in rows:
        assert (row["shape"], row["device_model"]) == ([2, 3, 32, 32], "a100")
        assert row["roofline_s"]["bytes"] == row["bytes"] / DEVICES["a100"].bandwidth
        assert (row["kept"] > 0) == (row["pass"] == "forward+backward")
        assert sum(kernel["calls"] for kernel in row["top"]) == row["kernels"]
        assert [kernel["bytes"] for kernel in row["top"]] == sorted((k["bytes"] for k in row["top"]), reverse=True)
        assert "aten.bernoulli_" not in [kernel["name"] for kernel in row["top"]]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--count", "--sizes", "coco", "--shape", "64", "64"], "--shape"),
        (["--sizes", "coco"], "--sizes"),
        (["--seed", "3"], "--seed"),
        (["--peer", "mmdet", "timm"], "--peer"),
        (["--count", "--device", "cuda"], "--device"),
        (["--count", "--mode", "eval"], "--mode"),
        (["--device-model", "a100"], "--device-model"),
    ],
)
def test_options_of_the_other_use_are_errors(options, named, monkeypatch, capsys):
    with pytest.raises(SystemExit) as error:
        run_main(monkeypatch, *options)
    assert error.value.code == 2
    assert named in capsys.readouterr().err.splitlines()[-1]


def test_vitdet_is_the_backbone_of_its_config():
    config = Config.fromfile(REPO / "configs/cascade_vit_b_coco.py").model.backbone
    options = dict(counting.VITDET["vitdet_base"])
    assert find_model(options.pop("name")).arch == config.arch
    own = ("type", "arch", "init_cfg", "drop_path_rate")
    assert options == {key: value for key, value in config.items() if key not in own}
