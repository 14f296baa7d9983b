"""Inference on a CPU: linear layers by oneDNN equal torch's, and memory is kept."""

import copy
import gc
import pickle
import subprocess
import sys
from threading import Thread

import pytest
import torch
import torch.nn.functional as F
from conftest import REPO, relative_error
from torch import nn
from torch.profiler import ProfilerActivity, profile

import vitdense
from vitdense.layers import onednn as cpu
from vitdense.layers.onednn import OneDnnLinear

ONEDNN = "mkldnn::_linear_pointwise"
pytestmark = pytest.mark.skipif(not cpu.has_onednn(), reason="needs torch with MKL and oneDNN")


@pytest.fixture(autouse=True)
def small_products(monkeypatch):
    monkeypatch.setattr(cpu, "SMALLEST_PRODUCT", 64)
    with torch.no_grad():
        yield


def ops(function):
    with profile(activities=[ProfilerActivity.CPU]) as run:
        function()
    return [event.key for event in run.key_averages()]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "x",
    [
        torch.ones(64),
        torch.ones(0, 64),
        torch.linspace(-1, 1, 7 * 64).view(7, 64),
        torch.linspace(-1, 1, 2 * 3 * 4 * 64).view(2, 3, 4, 64),
        torch.linspace(-1, 1, 7 * 64).view(64, 7).T,
        torch.linspace(-1, 1, 5 * 64).view(1, 5, 64).expand(3, -1, -1),
    ],
    ids=lambda x: f"{list(x.shape)} {x.stride()}",
)
def test_any_shape_and_memory(x, bias):
    weights = [torch.linspace(-1, 2, 9 * 64).view(9, 64), torch.linspace(-1, 2, 9 * 64).view(64, 9).T]
    for weight in weights if bias else [*weights, weights[0][0]]:
        of_layer = (weight, torch.linspace(0, 1, 9) if bias else None)
        with OneDnnLinear():
            y = F.linear(x, *of_layer)
        torch.testing.assert_close(y, F.linear(x, *of_layer))


def test_the_error_is_the_usual_one_of_float32():
    torch.manual_seed(0)
    x, layer = torch.randn(500, 384), nn.Linear(384, 256)
    with OneDnnLinear():
        by_onednn = layer(x)
    exact = copy.deepcopy(layer).double()(x.double())
    errors = [(y - exact).norm() / exact.norm() for y in (by_onednn, layer(x))]
    assert errors[0] < 1.5 * errors[1] < 1e-6


def test_which_products_it_takes():
    x, layer = torch.ones(8, 8), nn.Linear(8, 8)

    def found():
        with OneDnnLinear():
            return ONEDNN in ops(lambda: layer(x))

    assert found()
    assert ONEDNN not in ops(lambda: layer(x))
    with torch.enable_grad():
        assert not found()
        layer(x).sum().backward()  # and there is a gradient
    with torch.autocast("cpu", torch.bfloat16):
        assert found() == cpu.multiplies_bfloat16()
    layer.bfloat16()
    with pytest.raises(RuntimeError, match="dtype"):  # as in torch
        found()
    layer, x = layer.double(), x.double()
    assert not found()
    layer, x = nn.Linear(8, 7), torch.ones(1, 1, 8)
    assert not found()  # 56 multiply-adds


@pytest.mark.skipif(not cpu.multiplies_bfloat16(), reason="needs a CPU whose oneDNN takes bfloat16")
@pytest.mark.parametrize("change", ["in place", "other memory", "other parameter", "merged"])
def test_a_weight_in_bfloat16_is_kept_until_it_changes(change):
    torch.manual_seed(0)
    layer, x = nn.Linear(64, 32), torch.randn(5, 64)

    def run():
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            return layer(x)

    with OneDnnLinear():
        run()
    kept = cpu.packed(layer.weight)
    with OneDnnLinear():
        run()  # the next batch
        assert cpu.packed(layer.weight) is kept
        if change == "in place":
            layer.weight.mul_(-1)
        elif change == "other memory":
            layer.weight.data = -layer.weight
        elif change == "other parameter":
            layer.weight = nn.Parameter(-layer.weight)
        else:  # as a low-rank update is: a tensor that another pass makes again
            weight = layer.weight
            layer = lambda x: F.linear(x, -weight, layer_bias)  # noqa: E731
            layer_bias = torch.zeros(32)
        got = run()
    torch.testing.assert_close(got, run())


@pytest.mark.skipif(not cpu.multiplies_bfloat16(), reason="needs a CPU whose oneDNN takes bfloat16")
def test_what_is_kept_goes_with_its_parameter():
    gc.collect()
    others, layer = len(cpu._packed), nn.Linear(64, 32)
    cpu.packed(layer.weight)
    assert len(cpu._packed) == others + 1
    del layer
    gc.collect()
    assert len(cpu._packed) == others


def test_another_thread_computes_as_torch_has_it():
    seen = []
    with OneDnnLinear():
        thread = Thread(target=lambda: seen.extend(torch.overrides._get_current_function_mode_stack()))
        thread.start()
        thread.join()
        assert torch.overrides._get_current_function_mode_stack()
    assert not seen


@pytest.mark.parametrize("finetune", [None, "lora"])
def test_a_backbone_stays_as_it_is(finetune):
    torch.manual_seed(0)
    model = vitdense.Swin(
        dict(embed_dims=16, depths=(2, 2), num_heads=(1, 2)), out_indices=(0, 1), finetune=finetune
    ).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("lora.B"):
            nn.init.normal_(parameter, std=0.1)
    calls, x = [], torch.randn(1, 3, 61, 83)
    model.stages[0].blocks[0].mlp.fc1.register_forward_hook(lambda *args: calls.append(args[2].shape))
    before, want = pickle.dumps(model.state_dict()), model(x)
    with OneDnnLinear():
        got = model(x)
        assert ONEDNN in ops(lambda: model(x))
    assert len(calls) == 3
    assert pickle.dumps(model.state_dict()) == before
    for y, other in zip(got, want, strict=True):
        assert relative_error(y, other) < 1e-5


@pytest.mark.skipif(not cpu.is_glibc(), reason="needs glibc")
def test_memory_is_kept_until_it_is_given_back():
    """Pages that the system fills for a tensor which comes after a larger one, in a process of its own."""
    code = """
import resource, torch
from vitdense.layers.onednn import keep_memory
def faults():
    torch.ones(3 * 2**23)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**24)  # 64 MiB, which is 2**14 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
for keep in (None, True, False):
    assert keep is None or keep_memory(keep)
    print(faults())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPO)
    assert done.returncode == 0, done.stderr
    plain, kept, back = map(int, done.stdout.split())
    assert kept < 100 < 2**12 < min(plain, back)
