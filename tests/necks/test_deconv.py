import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vitdense.flops import macs, num_params
from vitdense.necks import DeconvPyramid
from vitdense.necks.deconv import DESIGNS

every = pytest.mark.parametrize("design", DESIGNS)
WIDTHS = {"vitdet": (8, 16, 32, 32), "beit": (32,) * 4, "light": (32,) * 4}


@every
@pytest.mark.parametrize("num_maps", [1, 4])
@pytest.mark.parametrize("size", [(4, 6), (3, 5), (1, 1)])
def test_four_strides_from_one_or_four_maps(design, num_maps, size):
    neck = DeconvPyramid([32] * num_maps, design).eval()
    with torch.no_grad():
        outs = neck([torch.randn(2, 32, *size) for _ in range(num_maps)])
    h, w = size
    sizes = [(4 * h, 4 * w), (2 * h, 2 * w), (h, w), (-(-h // 2), -(-w // 2))]
    assert neck.out_channels == WIDTHS[design]
    assert [tuple(out.shape) for out in outs] == [(2, c, *s) for c, s in zip(WIDTHS[design], sizes)]


@every
def test_every_parameter_gets_a_gradient_and_levels_read_their_own_map(design):
    neck = DeconvPyramid([32] * 4, design).train()
    maps = [torch.randn(2, 32, 4, 6, requires_grad=True) for _ in range(4)]
    outs = neck(maps)
    for i, out in enumerate(outs):
        grads = torch.autograd.grad(out.square().sum(), maps, retain_graph=True, allow_unused=True)
        assert [grad is not None for grad in grads] == [j == i for j in range(4)]
    sum(out.square().mean() for out in outs).backward()
    assert all(p.grad is not None for p in neck.parameters())


@every
def test_the_levels_are_the_documented_layers(design):
    """Written out: one enlargement, or two with a norm over the channels, or of the batch, and GELU between."""
    torch.manual_seed(0)
    neck = DeconvPyramid(8, design).double().train()
    for parameter in neck.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(2, 8, 3, 5, dtype=torch.float64)
    with torch.no_grad():
        outs = neck([x])

        def enlarged(x, layer):
            return F.conv_transpose2d(x, layer.weight, layer.bias, stride=2, groups=8 if design == "light" else 1)

        up, norm, gelu, again = neck.levels[0]
        y = enlarged(x, up)  # [B, C, 2h, 2w]
        axes, eps = ((1,), 1e-6) if design == "vitdet" else ((0, 2, 3), 1e-5)
        y = (y - y.mean(axes, keepdim=True)) / (y.var(axes, unbiased=False, keepdim=True) + eps).sqrt()
        y = F.gelu(y * norm.weight[:, None, None] + norm.bias[:, None, None])
        torch.testing.assert_close(outs[0], enlarged(y, again))
        (once,) = neck.levels[1]
        torch.testing.assert_close(outs[1], enlarged(x, once))
    assert isinstance(gelu, nn.GELU)
    assert torch.equal(outs[2], x)
    assert torch.equal(outs[3], F.max_pool2d(x, 2, ceil_mode=True))


def test_vitdets_levels_have_one_width_and_five_equal_an_fpn():
    neck = DeconvPyramid(32, "vitdet", out_channels=16, num_outs=5).eval()
    assert neck.out_channels == (16,) * 5
    with torch.no_grad():
        outs = neck([torch.randn(1, 32, 4, 7)])
    assert [tuple(out.shape[1:]) for out in outs] == [(16, 16, 28), (16, 8, 14), (16, 4, 7), (16, 2, 4), (16, 1, 2)]
    assert torch.equal(outs[4], outs[3][:, :, ::2, ::2])
    assert not any(conv.bias is not None for conv in neck.convs.modules() if isinstance(conv, nn.Conv2d))


@pytest.mark.parametrize(
    ("design", "millions", "billions"), [("vitdet", 0.66, 3.5), ("beit", 1.77, 14.2), ("light", 0.01, 0.0)]
)
def test_the_documented_costs_at_800x1280(design, millions, billions):
    with torch.device("meta"):
        neck = DeconvPyramid(384, design).eval()
        _, cost = macs(lambda: neck([torch.empty(1, 384, 50, 80)]))
    assert round(num_params(neck) / 1e6, 2) == millions
    assert round(cost / 1e9, 1) == billions


def test_invalid_maps_are_refused():
    neck, x = DeconvPyramid(32), torch.randn(1, 32, 2, 2)
    with pytest.raises(ValueError, match="got 4 maps, expected 1"):
        neck([x] * 4)
    with pytest.raises(ValueError, match=r"got \(1, 16, 2, 2\), expected maps \[B, 32, h, w\]"):
        neck([x[:, :16]])
    with pytest.raises(ValueError, match=r"got a tuple, expected maps .*output_cls_token False"):
        neck([(x, x[:, :, 0, 0])])
