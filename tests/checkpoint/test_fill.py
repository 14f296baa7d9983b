"""Models that take the tensors of a file: the same as drawn and copied to, whatever the file and the constructor."""

import copy
import subprocess
import sys
import threading

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import vitdense
from vitdense import Swin
from vitdense.checkpoint import fill as module
from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.fill import build_and_fill, fill
from vitdense.checkpoint.load import load_pretrained

TINY = {"embed_dims": 96, "depths": (1, 1), "num_heads": (3, 6)}  # linear layers with 27,000 and more elements
PEAK = """
import resource, sys, timm, torch, vitdense.models.vit.model
peak = lambda: 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
model = vitdense.create("vit_base.augreg_in21k", pretrained=sys.argv[1])
print((peak() - before) / sum(x.nbytes for x in model.state_dict().values()))
"""


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch):
    monkeypatch.setattr(module, "LARGE", 2**12)


def swin(**options):
    return Swin(TINY, **{"out_indices": (0, 1), **options})


def square(**options):
    return nn.Linear(64, 64, **options)


def prefixed(prefix, state):
    return {prefix + key: x for key, x in state.items()}


def counted(build):
    """The same, and a list of its calls."""
    calls = []

    def wrapper():
        calls.append(1)
        return build()

    return wrapper, calls


def memory(model):
    return {x.untyped_storage().data_ptr() for x in model.state_dict().values() if x.numel()}


@pytest.mark.long
@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_peak_memory_is_that_of_the_file(tmp_path, suffix):
    path = tmp_path / f"weights.{suffix}"
    with torch.device("meta"):
        shapes = vitdense.create("vit_base.augreg_in21k").state_dict()
    state = {key: torch.full(x.shape, 0.01) for key, x in shapes.items()}
    (torch.save if suffix == "pth" else save_file)(state, path)
    done = subprocess.run([sys.executable, "-c", PEAK, path], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 1.1


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize("options", [{}, {"frozen_stages": 1}, {"finetune": "lora"}], ids=str)
def test_model_is_that_of_drawing_and_copying(tmp_path, suffix, dtype, options):
    path = tmp_path / f"weights.{suffix}"
    state = {key: x.to(dtype) for key, x in swin(**options).state_dict().items()}
    (torch.save if suffix == "pth" else save_file)(state, path)
    want = swin(**options)
    load_pretrained(want, path)
    build, calls = counted(lambda: swin(**options))
    got = build_and_fill(build, lambda model: model.load_weights(path))
    assert len(calls) == 1
    for (name, x), (other, y) in zip(got.named_parameters(), want.named_parameters(), strict=True):
        assert name == other
        assert type(x) is nn.Parameter
        assert torch.equal(x, y)
        assert (x.dtype, x.requires_grad, x.stride()) == (y.dtype, y.requires_grad, y.stride())
    x = torch.rand(1, 3, 32, 32)
    assert all(torch.equal(a, b) for a, b in zip(got.eval()(x), want.eval()(x)))


def test_models_of_one_file_share_nothing_with_each_other_nor_with_the_file(tmp_path):
    for path, save in ((tmp_path / "weights.pth", torch.save), (tmp_path / "weights.safetensors", save_file)):
        save(swin().state_dict(), path)
        one, other = (build_and_fill(swin, lambda model, path=path: model.load_weights(path)) for _ in range(2))
        assert not memory(one) & memory(other)
        with torch.no_grad():
            for parameter in one.parameters():
                parameter.zero_()
        want = copy.deepcopy(other.state_dict())
        path.write_bytes(bytes(path.stat().st_size))
        assert all(torch.equal(x, want[key]) and x.any() == want[key].any() for key, x in other.state_dict().items())


def test_a_callers_state_dict_is_copied():
    state = swin().state_dict()
    model = build_and_fill(swin, lambda model: load_pretrained(model, state) and None)
    assert not memory(model) & {x.untyped_storage().data_ptr() for x in state.values()}


def unusual(weight):
    """The weight of a file that is a part of larger memory, or has its columns first, or one row for all."""
    larger = torch.zeros(2 * weight.numel())
    part = larger[: weight.numel()].view(weight.shape)
    yield part.copy_(weight)
    yield weight.T.contiguous().T
    yield weight[:1].expand(weight.shape)
    yield nn.Parameter(weight)


def test_tensors_that_do_not_own_their_memory_are_copied():
    for value in unusual(torch.rand(64, 64)):
        state = {"weight": value, "bias": torch.zeros(64)}
        model = build_and_fill(square, lambda model, state=state: fill(model, state, is_own=True))
        assert type(model.weight) is nn.Parameter
        assert torch.equal(model.weight, value)
        assert model.weight.is_contiguous()
        assert model.weight.untyped_storage().nbytes() == model.weight.nbytes


def test_parameters_that_share_memory_in_the_file_do_not_share_it_in_the_model():
    weight = torch.rand(64, 64)
    one = {"weight": weight, "bias": torch.zeros(64)}
    state = prefixed("0.", one) | prefixed("1.", one)
    model = build_and_fill(lambda: nn.Sequential(square(), square()), lambda m: fill(m, state, is_own=True))
    assert torch.equal(model[0].weight, model[1].weight)
    assert model[0].weight.data_ptr() != model[1].weight.data_ptr()


class Tied(nn.Module):
    """A parameter with two names, assigned by one of them or from a variable."""

    def __init__(self, by_variable):
        super().__init__()
        self.a, self.b = square(), square()
        if by_variable:
            self.a.weight = self.b.weight = nn.Parameter(torch.rand(64, 64))
        else:
            self.b.weight = self.a.weight


@pytest.mark.parametrize("by_variable", [False, True])
def test_shared_parameters_stay_shared(by_variable):
    state = Tied(by_variable).state_dict()
    build, calls = counted(lambda: Tied(by_variable))
    model = build_and_fill(build, lambda m: fill(m, state, is_own=True))
    assert len(calls) == 1
    assert model.a.weight is model.b.weight
    assert torch.equal(model.a.weight, state["b.weight"])


class Odd(nn.Module):
    """Does something with the values of a parameter in its constructor, by `how`."""

    def __init__(self, how):
        super().__init__()
        self.layer = square()
        how(self, self.layer.weight)


def _keep_the_parameter(model, _):
    parameter = nn.Parameter(torch.rand(64, 64))
    model.layer.weight = parameter
    model.kept = [parameter]


def _keep_its_memory(model, _):
    parameter = nn.Parameter(torch.rand(64, 64))
    model.layer.weight = parameter
    model.kept = parameter.data[0]


def _register_elsewhere(model, weight):
    model.teacher = [square()]  # in no module, so that no state dict has it


def _hook(model, weight):
    weight.register_hook(lambda gradient: 0 * gradient)


def _hook_before(model, weight):
    parameter = nn.Parameter(torch.rand(64, 64))
    parameter.register_hook(lambda gradient: 0 * gradient)
    model.layer.weight = parameter


ODD = {
    "number": lambda model, weight: setattr(model, "size", weight.norm().item()),
    "list": lambda model, weight: setattr(model, "rows", weight.tolist()),
    "numpy": lambda model, weight: setattr(model, "rows", weight.detach().numpy().copy()),
    "norm": lambda model, weight: setattr(model, "rows", weight.detach().norm()),
    "turned": lambda model, weight: setattr(model, "rows", weight.detach().t().contiguous()),
    "detached": lambda model, weight: setattr(model, "rows", weight.detach().clone()),
    "buffer": lambda model, weight: model.register_buffer("twice", 2 * weight.detach(), persistent=False),
    "parameter": _keep_the_parameter,
    "memory": _keep_its_memory,
    "teacher": _register_elsewhere,
    "hook": _hook,
    "hook before": _hook_before,
}


@pytest.mark.parametrize("how", ODD.values(), ids=ODD)
def test_a_constructor_that_needs_values_has_them_as_ever(how):
    """With the same seed: what no file gives, too."""
    state = {"layer.weight": torch.rand(64, 64), "layer.bias": torch.rand(64)}
    torch.manual_seed(7)
    want = Odd(how)
    want.load_state_dict(state)
    torch.manual_seed(7)
    got = build_and_fill(lambda: Odd(how), lambda model: fill(model, state, is_own=True))
    assert torch.equal(got.layer.weight, want.layer.weight)
    for name in ("size", "rows", "twice"):
        assert str(getattr(got, name, None)) == str(getattr(want, name, None))
    if hasattr(want, "teacher"):
        assert torch.equal(got.teacher[0].weight, want.teacher[0].weight)
    if hasattr(want, "kept"):
        assert got.kept[0].data_ptr() == got.layer.weight.data_ptr()
    for model in (got, want):
        model.layer.weight.sum().backward()
    assert torch.equal(got.layer.weight.grad, want.layer.weight.grad)


def test_layers_that_a_constructor_replaces_or_copies_are_no_reason_to_draw():
    def build():
        model = nn.Sequential(square(), square())
        model[0] = square(bias=False)
        model.append(copy.deepcopy(model[1]))
        model[1].weight.mark = "kept"
        return model

    state = build().state_dict()
    wrapped, calls = counted(build)
    model = build_and_fill(wrapped, lambda model: fill(model, state, is_own=True))
    assert len(calls) == 1
    assert model[1].weight.mark == "kept"
    assert all(torch.equal(x, state[key]) for key, x in model.state_dict().items())


def test_large_parameters_that_a_file_lacks_are_drawn_by_the_seed():
    state = square().state_dict()
    results = []
    for run in (build_and_fill, lambda build, load: load(model := build()) or model):
        torch.manual_seed(3)
        model = run(lambda: nn.Sequential(square(), square()), lambda m: fill(m, prefixed("0.", state), is_own=False))
        results.append(model.state_dict())
    for key, x in results[0].items():
        assert torch.equal(x, results[1][key]), key


def test_other_modules_and_other_threads_draw():
    def build():
        model = square()
        thread = threading.Thread(target=lambda: others.append(square()))
        thread.start()
        thread.join()
        return model

    others = []
    state = square().state_dict()
    build_and_fill(build, lambda model: fill(model, state, is_own=True))
    with pytest.raises(CheckpointMismatchError):
        build_and_fill(swin, lambda model: load_pretrained(model, {"weight": torch.ones(1)}))
    others.append(square())
    assert all(type(layer.weight) is nn.Parameter and layer.weight.device.type == "cpu" for layer in others)
