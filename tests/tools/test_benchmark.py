"""`tools/benchmark.py`: one run as a user's, and the pairs of models it times."""

import json
import subprocess
import sys
from functools import partial

import pytest
import torch
from conftest import REPO, needs_research

import benchmark
import counting
import measuring
from cost import DEVICES, Cost, Device
from vitdense.families import find_model

pytestmark = [pytest.mark.long, pytest.mark.commands]


def test_script_prints_ratios():
    pytest.importorskip("mmdet")
    options = ["--shape", "64", "96", "--rounds", "1", "--threads", "1", "--json"]
    command = [sys.executable, "tools/benchmark.py", "swin_tiny", *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPO)
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
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
        *(
            pytest.param(*case, marks=needs_research)
            for case in (
                ("nat_mini", "", (64, 64), "no other project has nat_mini"),
                ("swin_mixer_tiny_d24", "", (64, 64), "no other project has swin_mixer_tiny_d24"),
                ("resmlp_small_12", "mmpretrain", (64, 64), "blocks other than Mixer's"),
            )
        ),
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


def test_table_of_counts(monkeypatch, capsys):
    cost = Cost({"aten.mm": 1200, "aten.add": 34}, {"aten.mm": 3 * 10**9, "aten.add": 10**9}, 10**12, 5 * 10**9, 7)
    rows = [counting.Row("vitdense", "float32", "forward", cost)]
    monkeypatch.setattr(measuring, "count_rows", lambda models, shape: rows)
    monkeypatch.setattr(measuring, "pair", lambda *args: {})
    run_main(monkeypatch, "--count", "--top", "1")
    lines = capsys.readouterr().out.splitlines()
    assert DEVICES["h200"].source in lines[1]
    row = "float32 forward vitdense 1,234 7 4.00 1000.0 5.00 | 1.27 0.83 4.94 7.04"
    assert row in [" ".join(line.split()) for line in lines]
    assert lines[-1].split() == ["aten.mm", "1,200", "calls", "3.000", "GB", "75.0%"]


def test_a_model_that_cannot_run_in_bfloat16_has_no_counts():
    class Masked(torch.nn.Linear):
        def forward(self, x):
            return [super().forward(x[..., :4]).float() @ self.weight]

    model = Masked(4, 4)
    rows = counting.count_rows({"masked": (model, partial(model))}, (1, 3, 4, 4))
    assert [isinstance(row.cost, Cost) for row in rows] == [True, True, False, False]
    device = Device(1e9, 1e6, "here")
    assert "bfloat16" in counting.as_json(rows[2], device, 1)["error"]
    assert "does not run" in counting.table(rows, device).splitlines()[-1]
    with pytest.raises(RuntimeError):  # no reason to fail in float32
        counting.count_rows({"narrow": (model, partial(model))}, (1, 3, 4, 3))


class Cached(torch.nn.Linear):
    """Makes a constant in the first pass of a width, if asked to; the last one alone is kept."""

    def __init__(self, caches):
        super().__init__(3, 3)
        self.caches, self.width, self.constant, self.passes = caches, None, None, 0

    def forward(self, x):
        self.passes += 1
        if self.caches and self.width != x.shape[-1]:
            self.width, self.constant = x.shape[-1], torch.ones(x.shape[-1], device=x.device)
        return [(x + self.constant if self.caches else x).transpose(1, 3) @ self.weight]


def draw(caches, step):
    model = Cached(caches).to("meta")
    return model, counting.count_draw("cached", model, model, step, [(2, 4, 8), (2, 4, 16), (2, 4, 8), (2, 4, 8)])


@pytest.mark.parametrize("step", [counting.FORWARD, counting.TRAIN])
def test_cold_passes_find_the_caches_of_the_steps_before(step):
    model, (cold, warm) = draw(True, step)
    assert (cold.first, warm.first, cold.step) == (True, False, step)
    more = [first - again for first, again in zip(cold.values("kernels"), warm.values("kernels"))]
    assert more == [1, 1, 1, 0]  # the third width was dropped
    assert warm.costs[0] == warm.costs[2] == cold.costs[3] != warm.costs[1]
    assert cold.cached == warm.cached == 8 * 2
    assert model.passes == 4 + 2  # a warm one of every size


def test_repeated_sizes_of_a_model_without_caches_are_counted_once():
    model, (cold, warm) = draw(False, counting.FORWARD)
    assert cold.costs == warm.costs
    assert (len(cold.costs), cold.cached) == (4, 0)
    assert model.passes == 2 * 2


@pytest.mark.slow
def test_counts_over_batches_of_coco(monkeypatch, capsys):
    for package in ("mmdet", "timm"):
        pytest.importorskip(package)
    options = ["--count", "--sizes", "coco", "--steps", "2", "--peer", "mmdet", "timm"]
    run_main(monkeypatch, "swin_tiny", *options, "--json")
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [(row["pass"], row["model"], row["caches"]) for row in rows] == [
        (step, model, caches)
        for step in ("forward", "forward+backward")
        for model in ("vitdense", "mmdet", "timm")
        for caches in ("cold", "warm")
    ]
    for row in rows:
        assert (row["sizes"], row["steps"], row["distinct"], row["seed"]) == ("coco", 2, 2, 0)
        for name in ("kernels", "bytes", "kept"):
            assert row[name]["min"] <= row[name]["mean"] <= row[name]["max"]
        assert (row["kept"]["min"] > 0) == (row["pass"] == "forward+backward")
        assert (row["cached"] > 0) == (row["model"] == "vitdense")
    for cold, warm in zip(rows[::2], rows[1::2]):
        assert (cold["kernels"]["mean"] > warm["kernels"]["mean"]) == (cold["model"] == "vitdense")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--count", "--sizes", "coco", "--shape", "64", "64"], "--shape"),
        (["--count", "--sizes", "coco", "--top", "3"], "--top"),
        (["--count", "--sizes", "coco", "--steps", "0"], "--steps"),
        (["--sizes", "coco"], "--sizes"),
        (["--count", "--steps", "3"], "--steps"),
        (["--seed", "3"], "--seed"),
        (["--peer", "mmdet", "timm"], "--peer"),
        (["--count", "--device", "cuda"], "--device"),
        (["--count", "--rounds", "3"], "--rounds"),
        (["--count", "--mode", "eval"], "--mode"),
        (["--count", "--device-model", "h20"], "--device-model"),
        (["--top", "3"], "--top"),
        (["--device-model", "a100"], "--device-model"),
    ],
)
def test_options_of_the_other_use_are_errors(options, named, monkeypatch, capsys):
    with pytest.raises(SystemExit) as error:
        run_main(monkeypatch, *options)
    assert error.value.code == 2
    assert named in capsys.readouterr().err.splitlines()[-1]


def test_vitdet_is_the_backbone_of_its_config():
    from mmengine import Config

    config = Config.fromfile(REPO / "configs/cascade_vit_b_coco.py").model.backbone
    options = measuring.VITDET["vitdet_base"]
    assert find_model(options["name"]).arch == config.arch
    assert {**options, "name": 0} == {
        "name": 0,
        **{key: value for key, value in config.items() if key not in ("type", "arch", "init_cfg", "drop_path_rate")},
    }
