"""Rotary positions against their definition, and the rules by which models resize absolute positions."""

import math

import pytest
import torch
from conftest import relative_error
from test_vit import block_by_hand
from torch import nn

from vitdense import ViT
from vitdense.layers.layout import window_layout
from vitdense.layers.rope import ROPES, Rope
from vitdense.models.vit.model import BlockSpec, ViTBlock
from vitdense.models.vit.sizes import ViTArch

NANO = {"embed_dims": 32, "depth": 2, "num_heads": 2}


def angles_by_hand(kind, place, grid, head_dim):
    """The d/2 angles of a token at (row, column) of a grid, as the papers and the authors' code define them."""
    quarter = head_dim // 4
    if kind == "dinov3":
        halves = [
            [2 * math.pi * (2 * (at + 0.5) / n - 1) / 100 ** (4 * j / head_dim) for j in range(quarter)]
            for at, n in zip(place, grid)
        ]
    else:
        places = [16 * at / n if kind == "eva02" else at + 1 for at, n in zip(place, grid)]
        halves = [[at * 10000 ** (-4 * j / head_dim) for j in range(quarter)] for at in places]
    return [*halves[1], *halves[0]] if kind == "pe" else [*halves[0], *halves[1]]


def rotate_by_hand(kind, x, angles):
    """A query or key ``[d]``: every pair of channels is turned by its angle."""
    out, half = x.clone(), len(x) // 2
    for k, angle in enumerate(angles):
        i, j = (k, k + half) if kind == "dinov3" else (2 * k, 2 * k + 1)
        out[i] = x[i] * math.cos(angle) - x[j] * math.sin(angle)
        out[j] = x[j] * math.cos(angle) + x[i] * math.sin(angle)
    return out


@pytest.mark.parametrize("kind", ROPES)
@pytest.mark.parametrize(
    ("size", "window", "extra"), [((3, 4), None, 3), ((3, 5), (2, 3), 0)], ids=["global, extra tokens", "windows"]
)
def test_a_block_with_every_part_is_the_definition(kind, size, window, extra):
    """Rotary positions, no bias of keys, a SwiGLU with a norm, LayerScale, another epsilon; windows pad."""
    bias = "all" if kind == "pe" else "no_key"
    options = {"norm_eps": 1e-3, "qkv_bias": bias, "ffn": "swiglu_norm", "ffn_dims": 11}
    block = ViTBlock(BlockSpec(ViTArch(16, 1, 2, layer_scale=0.5, **options), window), 4.0).double()
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.5)
    x = torch.randn(2, extra + size[0] * size[1], 16, dtype=torch.float64)
    grid = x[:, extra:].unflatten(1, size)

    def turn(part, place, corner):
        is_local = window is not None and ROPES[kind].per_window
        at = tuple(a - b for a, b in zip(place, corner)) if is_local else place
        angles = angles_by_hand(kind, at, window if is_local else size, 8)
        return torch.stack([rotate_by_hand(kind, one, angles) for one in part])

    with torch.no_grad():
        rotation = Rope(kind, 8)(grid, window, extra)
        got = block(x, size, window_layout(grid, window) if window else None, rotation)
        want = torch.stack([block_by_hand(block, row, size, window, turn, 1e-3) for row in x])
    assert relative_error(got, want) < 1e-6  # angles are in float32


def test_rotations_follow_the_periods_that_were_loaded():
    rope, x = Rope("dinov3", 16), torch.zeros(1, 4, 6, 8)
    first = rope(x, None, 1)
    rope.periods.copy_(rope.periods.clone())  # as DDP's broadcast of buffers, at every step
    assert torch.equal(rope.half()(x, None, 1).cos, first.cos)
    for assign in (False, True):
        before = rope(x, None, 1)
        rope.load_state_dict({"periods": rope.periods * 2}, assign=assign)
        assert not torch.equal(rope(x, None, 1).cos, before.cos)
        other = Rope("dinov3", 16)
        other.load_state_dict(rope.state_dict())
        assert torch.equal(rope(x, None, 1).cos, other(x, None, 1).cos)


@pytest.mark.parametrize("change", [nn.Module.half, nn.Module.bfloat16])
def test_periods_keep_their_precision(change):
    rope = Rope("dinov3", 64)
    periods = rope.periods.clone()
    assert torch.equal(periods, 100 ** (torch.arange(16) / 16.0))
    assert torch.equal(change(rope).periods, periods)
    assert rope.to("meta").periods.is_meta
    assert change(ViT({**NANO, "rope": "dinov3"})).rope.periods.dtype == torch.float32


def test_augmentation_is_drawn_in_training_only_and_not_with_a_frozen_stem():
    arch, x = {**NANO, "rope": "dinov3"}, torch.randn(1, 3, 64, 64)
    options = {"rope_augment": {"rescale": 2.0, "jitter": 1.2, "shift": 0.1}, "drop_path_rate": 0.0}
    model = ViT(arch, **options).train()
    assert not torch.equal(model(x)[-1], model(x)[-1])
    model.eval()
    assert torch.equal(model(x)[-1], model(x)[-1])
    frozen = ViT(arch, frozen_stages=0, **options).train()
    assert torch.equal(frozen(x)[-1], frozen(x)[-1])
    for bounds, extreme in (({"shift": 0.5}, 0.5), ({"rescale": 2.0}, math.log(2)), ({"jitter": 2.0}, math.log(2))):
        draws = torch.stack([Rope("dinov3", 16, bounds)._draw(torch.device("cpu")) for _ in range(200)])
        moved = draws[:, 1] if "shift" in bounds else draws[:, 0].log()
        assert 0.9 * extreme < moved.abs().max() <= extreme
        both = torch.equal(moved[:, 0], moved[:, 1])
        assert both is ("rescale" in bounds)
    draws = torch.stack([Rope("dinov3", 16, {"shift": 0.5, "rescale": 2.0})._draw(x.device) for _ in range(200)])
    assert 0.45 < (draws[:, 1] / draws[:, 0]).abs().max() <= 0.501  # shifted, then scaled


@pytest.mark.parametrize("rope", ROPES)
def test_an_ensemble_under_vmap_caches_nothing(rope):
    models, x = [ViT({**NANO, "rope": rope}).eval() for _ in range(2)], torch.randn(1, 3, 48, 64)
    state = torch.func.stack_module_state(models)
    together = torch.vmap(lambda *own: torch.func.functional_call(models[0], own, (x,))[-1])(*state)
    for got, model in zip(together, models):
        torch.testing.assert_close(got, model(x)[-1], rtol=1e-4, atol=1e-5)
