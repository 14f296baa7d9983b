import math
from functools import partial

import pytest
import timm
import torch
import torch.nn.functional as F
from conftest import attend_windows_by_hand, classifier_totals, padded_to_windows, relative_error
from torch import nn

from vitdense import SwinV2
from vitdense.flops import num_params
from vitdense.layers.attention import unit_length
from vitdense.layers.layout import window_layout
from vitdense.models.swin_v2.model import BlockSpecV2, CosineWindowAttention

NANO = {"embed_dims": 16, "depths": (2, 2, 2, 2), "num_heads": (1, 2, 4, 8)}


def randomise(model):
    """Random norms too: at their initial zero a block is the identity, and 1 and 0 would hide a swap."""
    for name, parameter in model.named_parameters():
        if "logit_scale" in name:
            nn.init.normal_(parameter, math.log(10), 0.3)
        elif parameter.ndim == 1:
            nn.init.normal_(parameter, 0.5 * ("norm" in name and name.endswith("weight")), 0.2)
        else:
            nn.init.normal_(parameter, std=0.3 if "cpb_mlp" in name else 0.1)
    return model.eval()


def make_attention(window=(3, 3), shift=(0, 0), pretrained=None, dim=4, num_heads=2):
    spec = BlockSpecV2(0, dim, num_heads, window, shift, 0.0, pretrained or window, extra_norm=False)
    return randomise(CosineWindowAttention(spec))


def call(attention, x):
    windows = window_layout(x, attention.spec.window, attention.spec.shift)
    return windows.unpartition(attention(windows.partition(x), windows))


def brute_force_attention(attention, x):
    """Shifted cosine window attention written from the definition, query by query, in float64."""
    spec, hidden, out = attention.spec, attention.bias.cpb_mlp[0], attention.bias.cpb_mlp[2]
    bias = torch.cat([attention.q_bias, torch.zeros_like(attention.q_bias), attention.v_bias])
    qkv = padded_to_windows(spec, x) @ attention.qkv.weight.T + bias

    def unit(vector):
        length = math.sqrt(sum(float(v) ** 2 for v in vector))
        return vector / length if length else vector

    def logit(q, k, offset, head):
        spaced = [8 * n / (trained - 1) for n, trained in zip(offset, spec.pretrained_window)]
        spaced = torch.tensor([math.copysign(math.log2(1 + abs(n)) / 3, n) for n in spaced], dtype=x.dtype)
        position = out.weight[head] @ (hidden.weight @ spaced + hidden.bias).clamp_min(0)
        scale = min(math.exp(float(attention.logit_scale[head])), 100)
        return scale * (unit(q) @ unit(k)) + 16 / (1 + math.exp(-position))

    result = attend_windows_by_hand(spec, x.shape[:2], qkv.unflatten(-1, (3, spec.num_heads, -1)), logit)
    return result @ attention.proj.weight.T + attention.proj.bias


@pytest.mark.parametrize("shift", [(0, 0), (1, 1)])
@pytest.mark.parametrize(
    ("size", "window", "pretrained"),
    [((6, 6), (3, 3), None), ((5, 7), (3, 3), (5, 4)), ((3, 3), (3, 3), (2, 2)), ((4, 2), (2, 3), None)],
)
@torch.no_grad()
def test_window_attention_is_the_definition(size, window, shift, pretrained):
    attention = make_attention(window, shift, pretrained).double()
    attention.logit_scale[1] = 6.0  # e^6 > 100
    x = torch.randn(1, *size, 4, dtype=torch.float64)
    # The coordinates were rounded to float32 before the module became double.
    torch.testing.assert_close(call(attention, x)[0], brute_force_attention(attention, x[0]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 0.01), (torch.bfloat16, 0.05)])
@pytest.mark.parametrize("grad", [False, True])  # the fused and the composite body of `attend`
@pytest.mark.parametrize("cast", ["autocast", "module"])
def test_half_precision_of_large_activations(dtype, tolerance, grad, cast):
    attention = make_attention(shift=(1, 1), dim=32)
    x = 1000 * torch.randn(1, 5, 7, 32)
    with torch.set_grad_enabled(grad):
        want = call(attention, x)
        assert (F.linear(x, attention.qkv.weight).to(dtype) ** 2).sum(-1).isinf().any() == (dtype == torch.float16)
        if cast == "autocast":
            with torch.autocast("cpu", dtype):
                got = call(attention, x)
        else:
            got = call(attention.to(dtype), x.to(dtype))
    assert got.dtype == dtype
    assert got.isfinite().all()
    assert relative_error(got.detach().float(), want.detach()) < tolerance


@pytest.mark.parametrize("compiling", [False, True])
@torch.no_grad()
def test_lengths_of_queries_and_keys(compiling, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    qkv, scale = torch.randn(5, 3, 2, 4), torch.tensor([[3.0, 5.0], [1.0, 1.0]])
    q, k, v = unit_length(qkv.flatten(1).clone(), scale).view(qkv.shape).unbind(1)
    torch.testing.assert_close(q, F.normalize(qkv[:, 0], dim=-1) * scale[0, :, None])
    torch.testing.assert_close(k, F.normalize(qkv[:, 1], dim=-1))
    assert torch.equal(v, qkv[:, 2])


def test_both_forms_of_unit_length_have_the_same_gradients(monkeypatch):
    grads = []
    for compiling in (False, True):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda compiling=compiling: compiling)
        torch.manual_seed(0)
        qkv, scale = torch.randn(5, 24).double().requires_grad_(), torch.rand(2, 2).double().requires_grad_()
        (unit_length(qkv * 1, scale) * torch.randn(5, 24)).sum().backward()
        grads.append((qkv.grad, scale.grad))
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gradients_are_finite_on_a_map_that_pads(dtype):
    attention = make_attention(shift=(1, 1)).to(dtype)
    call(attention, torch.randn(1, 4, 4, 4, dtype=dtype)).square().sum().backward()
    for name, parameter in attention.named_parameters():
        assert parameter.grad.isfinite().all(), name
    # A padded key is the zero vector: its direction is taken to have no slope, for none that float16 holds is right.
    x = torch.zeros(2, 12, dtype=dtype, requires_grad=True)
    keys = unit_length(x * 1, torch.ones(2, 2))[:, 4:8]
    keys.sum().backward()
    assert not keys.any()
    assert not x.grad.any()


@torch.no_grad()
def test_drop_path_drops_what_the_norm_made():
    """After the norm, as the authors have it; before it, the norm would undo the drop with its bias."""
    model = randomise(SwinV2(NANO, drop_path_rate=0.9)).train()
    stage, x = model.stages[3], torch.randn(8, 8, 8, 128)
    block = stage.blocks[1]
    assert block.spec.drop_path == 0.9
    unchanged = (block(x, block.layout(x)) == x).flatten(1).all(1)  # [B], where both branches are dropped
    assert unchanged.any()


@torch.no_grad()
def test_a_new_block_is_the_identity():
    model = SwinV2({**NANO, "depths": (2, 3, 2, 2), "extra_norm_every": 3}, window_size=4).eval()
    for stage, block in ((0, model.stages[0].blocks[1]), (1, model.stages[1].blocks[0])):
        x = torch.randn(1, 5, 7, 16 * 2**stage)
        assert torch.equal(block(x, block.layout(x)), x)
    x = torch.randn(1, 5, 7, 32)
    torch.testing.assert_close(model.stages[1](x), F.layer_norm(x, (32,)))  # the extra norm starts as a plain one
    merging = model.stages[0].downsample
    assert torch.equal(merging.norm.weight, torch.ones(32))
    scales = [block.attn.logit_scale.exp() for stage in model.stages for block in stage.blocks]
    assert all(torch.allclose(scale, torch.tensor(10.0)) for scale in scales)


# With a 1000-class head and its norm, in millions, as published.
@pytest.mark.long
@pytest.mark.parametrize(
    ("arch", "window", "millions"), [("tiny", 8, 28.35), ("small", 8, 49.73), ("base", 8, 87.92), ("large", 16, 196.74)]
)
def test_published_parameter_counts(arch, window, millions):
    total, _ = classifier_totals(partial(SwinV2, arch, window_size=window))
    name = f"swinv2_{arch}_window{window}_256" if arch != "large" else "swinv2_large_window12to16_192to256"
    with torch.device("meta"):
        assert total == num_params(timm.create_model(name, num_classes=1000)) / 1e6
    assert total == pytest.approx(millions, abs=5e-3)


@torch.no_grad()
def test_pretraining_windows_per_stage():
    """None and 0 mean the window; one size means that size everywhere; a pair is (h, w)."""
    x = torch.randn(1, 3, 64, 96)

    def outs(sizes):
        torch.manual_seed(0)
        return randomise(SwinV2(NANO, window_size=4, pretrained_window_sizes=sizes))(x)

    same = outs(None)
    for sizes in (4, 0, (4, 4, 4, 4), [(4, 4)] * 4, (0, 4, 0, (4, 4))):
        assert all(torch.equal(a, b) for a, b in zip(outs(sizes), same))
    other = outs((4, 4, 4, (4, 2)))
    assert [torch.equal(a, b) for a, b in zip(other, same)] == [True, True, True, False]


@torch.no_grad()
@pytest.mark.parametrize(("window", "pretrained"), [(1, None), (4, 1), ((1, 4), (4, (1, 4), 1, 2))])
def test_windows_of_one_token_are_finite(window, pretrained):
    model = randomise(SwinV2(NANO, window_size=window, pretrained_window_sizes=pretrained))
    assert all(out.isfinite().all() for out in model(torch.randn(1, 3, 40, 56)))
