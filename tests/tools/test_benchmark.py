"""`tools/benchmark.py`: one run as a user's, and the pairs of models it times."""

import json
import subprocess
import sys

import pytest
import torch
from conftest import REPO

import benchmark

pytestmark = pytest.mark.long


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
    models = benchmark.pair(model, peer, shape)
    assert list(models) == ["vitdense", baseline]
    with torch.no_grad():
        ours, theirs = ([out.shape for out in run(torch.randn(1, 3, *shape))] for _, run in models.values())
    assert ours == theirs


@pytest.mark.parametrize("model", ["swinv2_tiny", "mvitv2_tiny"])
def test_both_loaders_restore_the_weights(model):
    ours, _ = benchmark.pair(model, "timm", (64, 64))["vitdense"]
    state = {key: x.clone() for key, x in ours.state_dict().items()}
    for load in benchmark.loading(ours).values():
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
    ],
)
def test_baseline_that_does_not_exist_is_an_error(model, peer, shape, named):
    with pytest.raises(ValueError, match=named):
        benchmark.pair(model, peer, shape)
