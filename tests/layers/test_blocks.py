import pytest
import timm
import torch
import torch.nn.functional as F
from conftest import relative_error
from torch.utils.checkpoint import checkpoint

from vitdense.layers import blocks
from vitdense.layers.blocks import LayerNorm, Mlp, OverlapPatchEmbed, ResidualLayerNorm


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("with_cp", [False, True])
def test_gradients_of_an_mlp_that_computes_its_activation_again(approximate, with_cp, monkeypatch):
    monkeypatch.setattr(blocks, "RECOMPUTES_ON_CPU", True)  # as it does on a GPU
    mlp = Mlp(4, 8, approximate=approximate).double()
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    leaves, go = [x, *mlp.parameters()], torch.randn(3, 4, dtype=torch.float64)
    out = checkpoint(mlp, x, use_reentrant=False) if with_cp else mlp(x)
    want = mlp.fc2(F.gelu(mlp.fc1(x), approximate=approximate))
    torch.testing.assert_close(out, want)
    for got, of_torch in zip(*(torch.autograd.grad(y, leaves, go) for y in (out, want)), strict=True):
        torch.testing.assert_close(got, of_torch)


def test_drop_path_draws_as_timm():
    x = torch.randn(64, 3, 5)
    torch.manual_seed(0)
    ours = blocks.DropPath(0.3).train()(x)
    torch.manual_seed(0)
    assert torch.equal(ours, timm.layers.DropPath(0.3).train()(x))
    assert not torch.equal(ours, x)
    assert torch.equal(blocks.DropPath(0.3).eval()(x), x)


@pytest.mark.parametrize("size", [(8, 12), (9, 14), (31, 33), (1, 3)])
def test_overlapping_patches_are_7x7_pixels_around_every_fourth(size):
    embed = OverlapPatchEmbed(3, 8)
    assert set(embed.state_dict()) == {"proj.weight", "proj.bias"}
    x = torch.randn(2, 3, *size)
    want = F.conv2d(x, embed.proj.weight, embed.proj.bias, stride=4, padding=3).permute(0, 2, 3, 1)
    assert want.shape[1:3] == (-(-size[0] // 4), -(-size[1] // 4))
    torch.testing.assert_close(embed(x), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("norm", "result"),
    [(LayerNorm(8), torch.bfloat16), (ResidualLayerNorm(8), torch.float32)],
    ids=["branch", "residual"],
)
def test_norm_of_a_map_in_half_precision(norm, result):
    """Under autocast on a CPU: gradients of weights are summed in float32. torch's own lose half of these sums."""
    x = torch.randn(4096, 8).bfloat16()

    def gradients(x):
        y = norm(x)
        return y, torch.autograd.grad((y.float() + 1).square().sum(), list(norm.parameters()))

    _, want = gradients(x.float())
    with torch.autocast("cpu", torch.bfloat16):
        y, got = gradients(x)
    assert y.dtype == result
    assert all(relative_error(a, b) < 0.005 for a, b in zip(got, want, strict=True))
