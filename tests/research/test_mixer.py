from functools import partial

import pytest
import torch
from conftest import classifier_totals, relative_error
from test_vit import by_hand, gelu, linear, mlp_by_hand, randomise
from torch import nn
from torch.nn import functional as F

from vitdense import Mixer
from vitdense.layers.layout import window_layout
from vitdense.research.mixer.model import (
    GMlpBlock,
    MixerBlock,
    Resampling,
    ResMlpBlock,
    mix_tokens,
    resampled_window_layout,
)
from vitdense.research.mixer.sizes import MIXER, MixerArch
from vitdense.research.swin_mixer.resize import resize_window_linear

NANO = {"embed_dims": 16, "depth": 4}
ARCHS = {
    "mixer": NANO,
    "resmlp": {**NANO, "block": "resmlp", "layer_scale": 0.5},
    "gmlp": {**NANO, "block": "gmlp", "mlp_ratio": 6.0},
}
every = pytest.mark.parametrize("arch", ARCHS.values(), ids=ARCHS)


def block_by_hand(block, x):
    if type(block) is MixerBlock:
        y = by_hand(block.norm1, x, 1e-6)
        columns = [mlp_by_hand(block.mlp_tokens, y[:, c]) for c in range(x.shape[1])]
        x = x + torch.stack(columns, dim=1)
        return x + mlp_by_hand(block.mlp_channels, by_hand(block.norm2, x, 1e-6))
    weight, bias = block.linear_tokens.weight, block.linear_tokens.bias[:, None]
    if isinstance(block, ResMlpBlock):
        x = x + block.gamma_1 * (weight @ (x * block.norm1.alpha + block.norm1.beta) + bias)
        return x + block.gamma_2 * mlp_by_hand(block.mlp_channels, x * block.norm2.alpha + block.norm2.beta)
    y = gelu(linear(block.fc1, by_hand(block.norm1, x, 1e-6)))
    half = y.shape[1] // 2
    y = y[:, :half] * (weight @ by_hand(block.gate_norm, y[:, half:], 1e-5) + bias)
    return x + linear(block.fc2, y)


@every
def test_a_block_is_the_definition(arch):
    kind = {"mixer": MixerBlock, "resmlp": ResMlpBlock, "gmlp": GMlpBlock}[arch.get("block", "mixer")]
    block = randomise(kind(MixerArch(**arch), 6, 0.0)).double()
    x = torch.randn(2, 2, 3, 16, dtype=torch.float64)
    with torch.no_grad():
        got = block(x, window_layout(x, (2, 3)))
        want = torch.stack([block_by_hand(block, image.flatten(0, 1)).unflatten(0, (2, 3)) for image in x])
    torch.testing.assert_close(got, want)


def test_layer_scale_starts_at_the_value_of_the_arch():
    """0.1 in 12 layers, and less in deeper models: the authors' code."""
    block = ResMlpBlock(MixerArch(**ARCHS["resmlp"]), 6, 0.0)
    assert all((gamma == 0.5).all() for gamma in (block.gamma_1, block.gamma_2))
    scales = [arch.layer_scale for name, arch in MIXER.items() if name.startswith("resmlp_")]
    assert scales == [0.1, 1e-5, 1e-6, 1e-6]


def test_a_new_gate_is_open():
    arch = MixerArch(**ARCHS["gmlp"])
    block, x = GMlpBlock(arch, 6, 0.0), torch.randn(1, 2, 3, 16)
    with torch.no_grad():
        want = x + block.fc2(F.gelu(block.fc1(block.norm1(x))).chunk(2, -1)[0])
        assert relative_error(block(x, window_layout(x, (2, 3))), want) < 1e-5


@every
def test_at_the_size_of_pretraining_both_rules_are_the_same(arch):
    options = {"pretrain_img_size": (64, 96), "drop_path_rate": 0.0}
    windows = randomise(Mixer(arch, **options)).eval()
    resize = Mixer(arch, transfer="resize", **options).eval()
    resize.load_state_dict(windows.state_dict())
    with torch.no_grad():
        x = torch.randn(2, 3, 64, 96)
        assert all(torch.equal(a, b) for a, b in zip(windows(x), resize(x), strict=True))
        x = torch.randn(2, 3, 80, 96)
        assert all(relative_error(a, b) > 1e-2 for a, b in zip(windows(x), resize(x), strict=True))


@pytest.mark.parametrize("k", [2, 3])
def test_windows_are_the_block_diagonal_matrices_of_appendix_c(k):
    """Pretraining at 224 pixels, then k times as much: token MLPs of k^2 blocks, one for each part of the image."""
    model = randomise(Mixer({**NANO, "depth": 1}, out_indices=(0,))).double()
    block = model.blocks[0]
    x = torch.randn(1, 14 * k, 14 * k, 16, dtype=torch.float64)
    part = torch.arange(14 * k) // 14
    part = (part[:, None] * k + part).flatten()  # of every token
    order = part.argsort(stable=True)  # tokens part by part, row by row
    first = torch.block_diag(*[block.mlp_tokens.fc1.weight] * k**2)[:, order.argsort()]  # [k^2 DS, k^2 S]
    second = torch.block_diag(*[block.mlp_tokens.fc2.weight] * k**2)[order.argsort()]  # [k^2 S, k^2 DS]
    with torch.no_grad():
        y = gelu(first @ block.norm1(x).flatten(0, 2) + block.mlp_tokens.fc1.bias.repeat(k**2)[:, None])
        y = second @ y + block.mlp_tokens.fc2.bias.repeat(k**2)[order.argsort()][:, None]
        want = x + y.view(x.shape)
        want = want + block.mlp_channels(block.norm2(want))
        torch.testing.assert_close(block(x, window_layout(x, model.grid)), want)
        if k == 2:  # and this is what the model does at 448 pixels
            image = torch.randn(1, 3, 448, 448, dtype=torch.float64)
            embedded = model.patch_embed(image)
            want = model.norm0(block(embedded, window_layout(embedded, (14, 14)))).permute(0, 3, 1, 2)
            torch.testing.assert_close(model(image)[0], want)


def test_windows_of_other_sizes_are_padded_with_zeros_after_the_norm():
    layer = randomise(nn.Linear(6, 6)).double()
    x = torch.randn(1, 3, 4, 5, dtype=torch.float64)
    padded = F.pad(x, (0, 0, 0, 2, 0, 1))  # [1, 4, 6, 5]
    want = torch.zeros_like(padded)
    with torch.no_grad():
        for y in (0, 2):
            for z in (0, 3):
                tokens = padded[0, y : y + 2, z : z + 3].flatten(0, 1)  # [6, 5]
                mixed = layer.weight @ tokens + layer.bias[:, None]
                want[0, y : y + 2, z : z + 3] = mixed.unflatten(0, (2, 3))
        torch.testing.assert_close(mix_tokens(layer, x, window_layout(x, (2, 3))), want[:, :3, :4])


@pytest.mark.parametrize("size", [(4, 6), (7, 5), (2, 9), (4, 9), (7, 6), (1, 1)])
def test_resize_is_bicubic_in_outputs_and_inputs(size):
    """W1 rows on the grid times S / S', W2 columns and b2; the hidden layer and b1 stay."""
    grid, tokens = (4, 6), size[0] * size[1]
    mlp = randomise(MixerBlock(MixerArch(**NANO), 24, 0.0).mlp_tokens)
    x = torch.randn(2, *size, 5)

    def resized(rows):  # [n, S] to [n, S']
        return F.interpolate(rows.view(1, -1, *grid), size=size, mode="bicubic").view(-1, tokens)

    with torch.no_grad():
        windows = resampled_window_layout(x, grid)
        assert isinstance(windows, Resampling) == (size != grid)
        first, second = resized(mlp.fc1.weight) * 24 / tokens, resized(mlp.fc2.weight.T).T
        y = F.gelu(F.linear(x.flatten(1, 2).transpose(1, 2), first, mlp.fc1.bias))
        want = F.linear(y, second, resized(mlp.fc2.bias[None])[0]).transpose(1, 2).view(x.shape)
        assert relative_error(mix_tokens(mlp, x, windows), want) < 1e-6


def test_a_linear_layer_resizes_as_its_window():
    """The rule of Swin-Mixer's windows, which their loader applies to the weights."""
    layer, x = randomise(nn.Linear(24, 24)), torch.randn(1, 7, 5, 3)
    weight = resize_window_linear(layer.weight.view(1, 4, 6, 4, 6), (7, 5)).view(35, 35)
    bias = resize_window_linear(layer.bias.view(1, 4, 6), (7, 5)).view(35)
    with torch.no_grad():
        want = (weight @ x.flatten(0, 2) + bias[:, None]).view(x.shape)
        assert relative_error(mix_tokens(layer, x, resampled_window_layout(x, (4, 6))), want) < 1e-6


# MLP-Mixer Table 1 (parameters without a head); ResMLP's include the classifier.
PUBLISHED = [
    ("mixer_small_32", 18.6, 1.0),
    ("mixer_small_16", 18.0, 3.8),
    pytest.param("mixer_base_32", 59.5, 3.2, marks=pytest.mark.slow),
    ("mixer_base_16", 59.1, 12.6),
    pytest.param("mixer_large_32", 205.9, 11.3, marks=pytest.mark.slow),
    pytest.param("mixer_large_16", 207.2, 44.6, marks=pytest.mark.slow),
    pytest.param("mixer_huge_14", 431.1, 121.0, marks=pytest.mark.slow),
    ("resmlp_small_12", 15.35, 3.0),
    pytest.param("resmlp_small_24", 30.02, 6.0, marks=pytest.mark.slow),
    pytest.param("resmlp_small_36", 44.69, 8.9, marks=pytest.mark.slow),
    ("resmlp_base_24", 129.14, 100.2),
    # As counted here: the paper rounds to millions.
    ("gmlp_tiny", 5.74, 1.3),
    pytest.param("gmlp_small", 19.17, 4.4, marks=pytest.mark.slow),
    ("gmlp_base", 72.56, 15.7),
]


@pytest.mark.long
@pytest.mark.parametrize(("arch", "millions", "billions"), PUBLISHED)
def test_published_totals(arch, millions, billions):
    is_resmlp = arch.startswith("resmlp")
    params, cost = classifier_totals(partial(Mixer, arch), heads=int(is_resmlp))
    assert params == pytest.approx(millions, abs=0.005 if is_resmlp else 0.05)
    assert cost == pytest.approx(billions, abs=0.06)


def test_drop_path_grows_to_the_last_block():
    rates = [getattr(block.drop_path, "drop_prob", 0) for block in Mixer(NANO, drop_path_rate=0.3).blocks]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3])
