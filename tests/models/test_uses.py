"""What users do with a model beside calling it: differentiate it by `torch.func` and twice, trace it, pickle it, build
it on the meta device, give it an empty batch, shard it by block, checkpoint its activations."""

import copy
import io
import pickle
import sys

import pytest
import torch
from conftest import relative_error
from contract_rows import ADAPTERS
from test_contract import BACKBONES, one_per_family
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.attention import SDPBackend, sdpa_kernel

from cost import CostCounter
from vitdense import MViT, Swin, SwinV2
from vitdense.checkpoint.fit import fill
from vitdense.layers import blocks
from vitdense.models.mvit.model import MViTBlock
from vitdense.models.swin.model import SwinBlock

MODELS = {**BACKBONES, "vit_adapter": ADAPTERS["vit_adapter, class token"]}
every = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())


def random_model(make):
    torch.manual_seed(0)
    model = make().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.15)
    return model


def loss(model, x):
    return sum(out.square().mean() for out in model(x))


@every
@pytest.mark.long
def test_gradients_by_torch_func_equal_autograd(make, monkeypatch):
    """Also through the activations that other devices recompute."""
    monkeypatch.setattr(blocks, "RECOMPUTES_ON_CPU", True)
    model, x = random_model(make), torch.randn(2, 3, 40, 56)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}

    def of_parameters(parameters):
        return sum(out.square().mean() for out in torch.func.functional_call(model, parameters, (x,)))

    got = torch.func.grad(of_parameters)(parameters)
    loss(model, x).backward()
    largest = max(p.grad.abs().max() for p in parameters.values() if p.grad is not None)
    for name, parameter in parameters.items():
        want = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        # Some have a gradient of zero but for rounding: the softmax does not see what it adds to all keys.
        torch.testing.assert_close(got[name], want, rtol=1e-4, atol=1e-6 * largest.item(), msg=name)


SMOOTH = [name for name in MODELS if name != "vit_adapter"]  # torch's grid_sample has no second derivative


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.long
def test_second_derivatives_are_finite_differences_of_the_first(name):
    make = MODELS[name]
    # torch's fused attention has no second derivative.
    model, x = random_model(make).double(), torch.randn(1, 3, 36, 44, dtype=torch.float64)
    direction, step = torch.randn_like(x), 1e-7

    def slope(x):
        x = x.detach().requires_grad_()
        return x, torch.autograd.grad(loss(model, x), x, create_graph=True)[0]

    with sdpa_kernel(SDPBackend.MATH):
        at, gradient = slope(x)
        got = torch.autograd.grad((gradient * direction).sum(), at)[0]
        ahead, behind = (slope(x + sign * step * direction)[1].detach() for sign in (1, -1))
    assert relative_error(got, (ahead - behind) / (2 * step)) < 1e-4


@one_per_family
@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # jit is deprecated, and says that sizes are constants
def test_a_traced_model_is_saved_and_loaded(make):
    model, x = random_model(make), torch.randn(2, 3, 40, 56)
    file = io.BytesIO()
    with torch.no_grad():
        torch.jit.save(torch.jit.trace(model, x, check_trace=False), file)
        file.seek(0)
        other = torch.randn_like(x)
        for got, want in zip(torch.jit.load(file)(other), model(other)):
            assert relative_error(got, want) < 1e-5


@every
def test_a_model_is_pickled_copied_and_cast_after_a_pass(make):
    model, x = random_model(make), torch.randn(1, 3, 40, 56)
    with torch.no_grad():
        want = model(x)
        for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
            assert all(torch.equal(a, b) for a, b in zip(other(x), want))
        got = other.double()(x.double())
    assert {out.dtype for out in got} == {torch.float64}
    assert max(relative_error(a.float(), b) for a, b in zip(got, want)) < 1e-4


@every
def test_a_model_built_on_meta_is_filled_by_weights(make):
    """Buffers that are formulas come from no file: whoever loads other projects' weights has none of them."""
    model, x = random_model(make), torch.randn(1, 3, 40, 56)
    with torch.device("meta"):
        other = make().eval()
    other.to_empty(device="cpu")
    with torch.no_grad():
        for mine, theirs in zip(other.parameters(), model.parameters(), strict=True):
            mine.copy_(theirs)
        for (name, mine), theirs in zip(other.named_buffers(), model.buffers(), strict=True):
            if name.rpartition(".")[2] in ("running_mean", "running_var", "num_batches_tracked", "features"):
                # Statistics, and the features that a Performer draws, are no formulas: files hold them.
                mine.copy_(theirs)
            assert torch.equal(mine, theirs), name
        assert all(torch.equal(a, b) for a, b in zip(other(x), model(x)))


@every
def test_a_model_takes_the_tensors_of_a_file(make):
    model, x = random_model(make), torch.randn(1, 3, 40, 56)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    if not model.takes_tensors:
        pytest.skip("built with values")
    with torch.device("meta"):
        other = make()
    fill(other, state, is_own=True)
    assert {value.data_ptr() for value in other.state_dict().values()} == {x.data_ptr() for x in state.values()}
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(other.eval()(x), model(x)))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="callers keep the arguments of a call")
@one_per_family
def test_the_map_before_the_first_stage_is_freed_after_it(make, monkeypatch):
    model, freed = make().eval(), []
    unroll = model.unroll

    def watched(x):
        x, size, steps = unroll(x)
        memory = StorageWeakRef(x.untyped_storage())
        later = [lambda y, step=step: freed.append(memory.expired()) or step(y) for step in steps[1:]]
        return x, size, [steps[0], *later]

    monkeypatch.setattr(model, "unroll", watched)
    with torch.no_grad():
        model(torch.rand(1, 3, 64, 64))
    assert freed
    assert all(freed)


@every
def test_an_empty_batch_has_empty_maps(make):
    model = make().eval()
    with torch.no_grad():
        empty, one = model(torch.zeros(0, 3, 40, 56)), model(torch.zeros(1, 3, 40, 56))
    assert [tuple(out.shape) for out in empty] == [(0, *out.shape[1:]) for out in one]


CHECKPOINTED = {
    "swin": lambda: Swin("tiny", with_cp=True, drop_path_rate=0.0),
    "swin_v2": lambda: SwinV2("tiny", window_size=24, with_cp=True, drop_path_rate=0.0),
    "mvit": lambda: MViT("v2_tiny", with_cp=True, drop_path_rate=0.0),
}


@pytest.mark.long
@pytest.mark.parametrize("make", CHECKPOINTED.values(), ids=CHECKPOINTED.keys())
def test_checkpointed_stages_keep_the_inputs_of_their_blocks(make):
    """Position biases are not kept either: with windows of 24 they are five times as large."""
    with torch.device("meta"):
        model = make().train()
    inputs = []
    for module in model.modules():
        if isinstance(module, (SwinBlock, MViTBlock)):
            module.register_forward_pre_hook(lambda _, args: inputs.append(2 * args[0].numel()))
    x = model.patch_embed(torch.empty(2, 3, 768, 768, device="meta"))
    for stage in model.stages:
        x, start = x.detach().requires_grad_(), len(inputs)
        with CostCounter(model) as counter:
            out = stage(x)
        assert 0 < counter.cost.kept <= 1.1 * sum(inputs[start:])
        x = stage.downsample(out) if getattr(stage, "downsample", None) else out
