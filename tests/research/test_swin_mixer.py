import itertools
from functools import partial

import pytest
import torch
from conftest import classifier_totals
from torch import nn
from torch.nn import functional as F

from vitdense import SwinMixer
from vitdense.checkpoint.convert import convert
from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.load import load_pretrained
from vitdense.layers.resize import resize_grid
from vitdense.models.swin.model import BlockSpec
from vitdense.research.swin_mixer.checkpoint import to_grouped
from vitdense.research.swin_mixer.model import WindowLinear
from vitdense.research.swin_mixer.resize import bicubic_weights, resize_window_linear
from vitdense.research.swin_mixer.sizes import SWIN_MIXER

WINDOWS = [((7, 7), (12, 12)), ((12, 12), (7, 7)), ((7, 7), (8, 12)), ((4, 6), (6, 4))]
NANO = {"embed_dims": 8, "depths": (2, 2), "num_heads": (2, 4)}


def make(**options):
    return SwinMixer(NANO, **{"window_size": 4, "out_indices": (0, 1), "drop_path_rate": 0.0, **options})


def layer_of(window, shift, dim=6, heads=2):
    spec = BlockSpec(stage=0, dim=dim, num_heads=heads, window=window, shift=shift, drop_path=0.0)
    layer = WindowLinear(spec).double()
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    return layer


def by_hand(layer, x, window, shift):
    """Token by token: zeros to the left and top move the grid of windows by the shift; a missing token is zero."""
    (wh, ww), channels = window, x.shape[3] // layer.weight.shape[0]  # of a head
    top, left = (side - by if by else 0 for side, by in zip(window, shift))
    padded, out = F.pad(x, (0, 0, left, ww, top, wh)), torch.zeros_like(x)
    for y, z in itertools.product(*map(range, x.shape[1:3])):
        row, column = (y + top) % wh, (z + left) % ww  # place in the window
        tokens = padded[:, y + top - row :, z + left - column :][:, :wh, :ww]  # [B, M, M, C]
        of_place = (part[:, row, column].repeat_interleave(channels, 0) for part in (layer.weight, layer.bias))
        weight, bias = of_place  # [C, M, M], [C]
        out[:, y, z] = torch.einsum("bijc,cij->bc", tokens, weight) + bias
    return out


@pytest.mark.parametrize(
    ("size", "window", "shift"),
    [
        ((6, 6), (3, 3), (0, 0)),
        ((6, 6), (3, 3), (1, 1)),  # left and top zeros are 2, the shift is 1
        ((5, 7), (3, 3), (1, 1)),
        ((5, 7), (3, 3), (0, 0)),
        ((7, 5), (4, 4), (2, 2)),
        ((5, 6), (5, 5), (2, 2)),  # a map of one window shifts too
        ((3, 9), (2, 5), (1, 2)),
        ((4, 5), (1, 3), (0, 1)),  # a window of one row has no shift along it
        ((2, 1), (5, 5), (2, 2)),
    ],
)
def test_the_layer_is_the_definition(size, window, shift):
    layer = layer_of(window, shift, dim=4)
    x = torch.randn(2, *size, 4, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), by_hand(layer, x, window, shift))


@pytest.mark.parametrize(("side", "shift"), [(3, 1), (4, 2), (5, 2), (7, 3), (7, 0)])
def test_whole_windows_are_the_authors_padding_and_grouped_convolution(side, shift):
    """Left and top M - s zeros, right and bottom s, which are cut off; channel c belongs to head c // (C / heads)."""
    layer, heads, dim = layer_of((side, side), (shift, shift)), 2, 6
    x = torch.randn(2, 2 * side, 3 * side, dim, dtype=torch.float64)
    with torch.no_grad():
        weight, bias = to_grouped(layer.weight, layer.bias)
        before, after = (side - shift, shift) if shift else (0, 0)
        padded = F.pad(x, (0, 0, before, after, before, after))
        h, w = padded.shape[1] // side, padded.shape[2] // side
        parts = padded.view(2, h, side, w, side, heads, dim // heads).permute(0, 1, 3, 5, 2, 4, 6)  # ... heads, M, M, d
        y = F.conv1d(parts.reshape(-1, heads * side**2, dim // heads), weight, bias, groups=heads)
        y = y.view(2, h, w, heads, side, side, dim // heads).permute(0, 1, 4, 2, 5, 3, 6).reshape(padded.shape)
        want = y[:, before : before + 2 * side, before : before + 3 * side]
        torch.testing.assert_close(layer(x), want)


def test_padding_comes_after_the_norm_and_is_zero():
    """A token whose window is padding otherwise gets its own share and the bias."""
    block = make().stages[0].blocks[1]
    nn.init.normal_(block.norm1.bias)  # what padding before the norm would turn zeros into
    layer = block.spatial_mlp
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    x = torch.randn(1, 1, 1, 8)
    with torch.no_grad():
        own = layer.weight[:, 2, 2, 2, 2, None] * block.norm1(x)[0, 0, 0].view(2, 4) + layer.bias[:, 2, 2, None]
        mixed = x + own.flatten()
        torch.testing.assert_close(block(x, None), mixed + block.mlp(block.norm2(mixed)))


def test_odd_blocks_shift_unless_told():
    blocks = [block.spatial_mlp for stage in make().stages for block in stage.blocks]
    assert [(layer.top, layer.left) for layer in blocks] == [(0, 0), (2, 2)] * 2
    blocks = [block.spatial_mlp for stage in make(window_size=(4, 7)).stages for block in stage.blocks]
    assert [(layer.top, layer.left) for layer in blocks] == [(0, 0), (2, 4)] * 2
    assert not any(block.spatial_mlp.top for stage in make(shift=False).stages for block in stage.blocks)
    with torch.no_grad():
        plain, still = make().eval(), make(shift=False).eval()
        still.load_state_dict(plain.state_dict())
        x = torch.randn(1, 3, 64, 96)
        assert not torch.equal(plain(x)[1], still(x)[1])


def test_weights_are_drawn_as_the_authors_do():
    layer = SwinMixer("tiny_d24").stages[0].blocks[0].spatial_mlp
    assert layer.weight.shape == (4, 8, 8, 8, 8)
    assert layer.weight.std().item() == pytest.approx(0.02, rel=0.03)
    assert not layer.bias.any()


@pytest.mark.parametrize(
    ("arch", "window", "image", "millions", "billions"),
    [
        ("tiny_d24", 8, 256, 20.387, 4.03),
        ("tiny_d12", 8, 256, 21.152, 4.03),
        ("tiny_d6", 8, 256, 22.683, 4.03),
        ("base", 7, 224, 60.659, 10.41),
    ],
)
def test_published_totals(arch, window, image, millions, billions):
    """Parameters of the classifier: 20, 21, 23 and 61 M in the paper; multiply-adds with the windows of a shift."""
    params, cost = classifier_totals(partial(SwinMixer, arch, window_size=window), image)
    assert params == pytest.approx(millions, abs=5e-4)
    # Classification does not shift the last map, which is one window: it has three windows less.
    assert cost - 24 * SWIN_MIXER[arch].embed_dims * window**4 / 1e9 == pytest.approx(billions, abs=5e-3)


@pytest.mark.parametrize(("old", "new"), [(7, 12), (12, 7), (3, 9), (5, 1), (1, 4), (6, 6)])
def test_bicubic_weights_are_the_resize_of_an_axis(old, new):
    grid = torch.randn(1, old, 5, 3)
    got = torch.einsum("Hh,bhwc->bHwc", bicubic_weights(old, new), grid)
    torch.testing.assert_close(got, resize_grid(grid, (new, 5)))
    torch.testing.assert_close(bicubic_weights(old, new).sum(1), torch.ones(new))
    assert old != new or torch.equal(bicubic_weights(old, new), torch.eye(old))


@pytest.mark.parametrize(("old", "new"), [*WINDOWS, ((4, 4), (8, 8)), ((8, 8), (4, 4))])
def test_linear_map_of_a_window_is_bicubic_in_outputs_and_inputs(old, new):
    """S / S' times R W R^T for the matrix R of the resize, and R b."""
    weight, bias = torch.randn(2, *old, *old), torch.randn(2, *old)
    rows, columns = (bicubic_weights(a, b) for a, b in zip(old, new))
    want = torch.einsum("Aa,Bb,Cc,Dd,nabcd->nABCD", rows, columns, rows, columns, weight)
    want = want * (old[0] * old[1]) / (new[0] * new[1])
    torch.testing.assert_close(resize_window_linear(weight, new), want, rtol=1e-4, atol=1e-5)
    want = torch.einsum("Aa,Bb,nab->nAB", rows, columns, bias)
    torch.testing.assert_close(resize_window_linear(bias, new), want, rtol=1e-4, atol=1e-5)


def test_weights_of_another_window_are_resized_when_loaded():
    source = make()
    for parameter in source.parameters():
        nn.init.normal_(parameter, std=0.1)
    official = convert(source.state_dict(), "official").state
    name = "stages.1.blocks.1.spatial_mlp."
    assert official["layers.1.blocks.1.spatial_mlp.weight"].shape == (4 * 16, 16, 1)
    for rule in ("bicubic", "timm"):
        target = make(window_size=(3, 6))
        report = load_pretrained(target, {"model": official}, resize=rule)
        assert len(report.resized) == 8
        assert report.resized[f"{name}weight"] == ((4, 4, 4, 4, 4), (4, 3, 6, 3, 6))
        assert report.resized[f"{name}bias"] == ((4, 4, 4), (4, 3, 6))
        for part in ("weight", "bias"):
            want = resize_window_linear(source.state_dict()[name + part], (3, 6), rule)
            assert torch.equal(target.state_dict()[name + part], want)
    same = make().eval()
    assert not load_pretrained(same, {"model": official}).resized
    x = torch.randn(1, 3, 50, 70)
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(same(x), source.eval()(x), strict=True))


def test_other_heads_are_no_other_window():
    official = convert(make().state_dict(), "official", drop_output_norms=True).state
    with pytest.raises(CheckpointMismatchError, match=r"spatial_mlp\.weight \(2, 4, 4, 4, 4\), expected \(1, "):
        load_pretrained(SwinMixer({**NANO, "num_heads": (1, 4)}, window_size=4, out_indices=(0, 1)), official)


def test_windows_that_are_not_square_keep_our_names():
    with pytest.raises(CheckpointMismatchError, match="not square"):
        convert(make(window_size=(2, 4)).state_dict(), "official", drop_output_norms=True)
    official = convert(make().state_dict(), "official", drop_output_norms=True).state
    key = "layers.0.blocks.0.spatial_mlp"
    official |= {f"{key}.weight": torch.zeros(16, 8, 1), f"{key}.bias": torch.zeros(16)}
    with pytest.raises(CheckpointMismatchError, match="square number"):
        load_pretrained(make(), official)
    again = make(window_size=(2, 4))
    assert load_pretrained(again, make(window_size=(2, 4)).state_dict()).share == 1
