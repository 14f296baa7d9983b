"""Deformable convolutions and attention of mmcv on the stand-in, against reference loops over the samples."""

import itertools
import math

import pytest
import torch
from torch.autograd import gradcheck

from cost import CostCounter
from vitdense.ops import ops_in_use

mm = pytest.importorskip("mmcv.ops")
pytestmark = pytest.mark.skipif(ops_in_use().kind != "stand-in", reason="a compiled mmcv is in use")

# stride, padding, dilation, groups, deformable groups
CONVOLUTIONS = [(1, 0, 1, 1, 1), (2, 1, 1, 2, 1), ((1, 2), (2, 1), (2, 1), 1, 2), (1, 1, 1, 2, 4)]
each_convolution = pytest.mark.parametrize("settings", CONVOLUTIONS, ids=str)


def non_integer_offsets(*shape: int) -> torch.Tensor:
    """Offsets that are not near integers, where bilinear sampling is not differentiable."""
    return torch.randint(-2, 2, shape) + 0.2 + 0.6 * torch.rand(shape).double()


def conv_inputs(stride, padding, dilation, groups, deform_groups, batch=2):
    pair = [(v, v) if isinstance(v, int) else v for v in (stride, padding, dilation)]
    size, kernel = (5, 6), (3, 2)
    h, w = ((size[a] + 2 * pair[1][a] - pair[2][a] * (kernel[a] - 1) - 1) // pair[0][a] + 1 for a in (0, 1))
    x = torch.randn(batch, 4, *size).double()
    weight = torch.randn(6, 4 // groups, *kernel).double()
    offset = non_integer_offsets(batch, 2 * deform_groups * 6, h, w)
    mask = torch.rand(batch, deform_groups * 6, h, w).double()
    return x, offset, mask, weight, torch.randn(6).double(), pair


def bilinear_zero_padded(plane: torch.Tensor, y: float, x: float) -> float:
    h, w = plane.shape
    y0, x0 = math.floor(y), math.floor(x)
    total = 0.0
    for r, wr in ((y0, 1 - y + y0), (y0 + 1, y - y0)):
        for c, wc in ((x0, 1 - x + x0), (x0 + 1, x - x0)):
            if 0 <= r < h and 0 <= c < w:
                total += float(plane[r, c]) * wr * wc
    return total


def reference_deform_conv(x, offset, mask, weight, bias, pair, groups, deform_groups):
    (sh, sw), (ph, pw), (dh, dw) = pair
    out_channels, per_group, kh, kw = weight.shape
    out = x.new_zeros(len(x), out_channels, *offset.shape[-2:])
    for b, i, j in itertools.product(range(len(x)), *map(range, out.shape[2:])):
        taps = x.new_zeros(x.shape[1], kh, kw)
        for c, u, v in itertools.product(*map(range, taps.shape)):
            group = c // (x.shape[1] // deform_groups)
            tap = group * kh * kw + u * kw + v
            dy, dx = offset[b, 2 * tap, i, j].item(), offset[b, 2 * tap + 1, i, j].item()
            value = bilinear_zero_padded(x[b, c], i * sh - ph + u * dh + dy, j * sw - pw + v * dw + dx)
            taps[c, u, v] = value * (1 if mask is None else mask[b, tap, i, j])
        for o in range(out_channels):
            start = o // (out_channels // groups) * per_group
            out[b, o, i, j] = (weight[o] * taps[start : start + per_group]).sum()
    return out if bias is None else out + bias[:, None, None]


def convolve(x, offset, mask, weight, bias, *settings):
    if mask is None:
        return mm.deform_conv2d(x, offset, weight, *settings)
    return mm.modulated_deform_conv2d(x, offset, mask, weight, bias, *settings)


@pytest.mark.parametrize("kind", ["plain", "modulated", "modulated, with bias"])
@each_convolution
def test_deformable_convolution_is_the_definition(settings, kind):
    x, offset, mask, weight, bias, pair = conv_inputs(*settings)
    mask, bias = mask if "modulated" in kind else None, bias if "bias" in kind else None
    want = reference_deform_conv(x, offset, mask, weight, bias, pair, *settings[3:])
    torch.testing.assert_close(convolve(x, offset, mask, weight, bias, *settings), want)
    tensors = [t if t is None else t[:1].requires_grad_() for t in (x, offset, mask)]
    tensors += [t if t is None else t.requires_grad_() for t in (weight, bias)]
    assert gradcheck(lambda *t: convolve(*t, *settings), tensors, fast_mode=True)


@each_convolution
def test_the_gradient_of_the_weight_alone(settings):
    x, offset, _, weight, *_ = conv_inputs(*settings)
    mm.deform_conv2d(x, offset, weight.requires_grad_(), *settings).sum().backward()
    assert weight.grad.abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("modulated", [False, True])
@each_convolution
def test_gradient_of_offsets_at_whole_positions(settings, modulated, dtype):
    """It is the slope to the right and below. Samples at -1 have none: to the compiled op they are outside."""
    x, offset, mask, weight, _, pair = conv_inputs(*settings)
    x, mask, weight = x.to(dtype), mask.to(dtype), weight.to(dtype)
    offset = torch.randint(-3, 4, offset.shape).to(dtype)

    def gradient(offset):
        offset = offset.clone().requires_grad_()
        out = convolve(x, offset, mask if modulated else None, weight, None, *settings)
        return torch.autograd.grad(out.sum(), offset)[0]

    want = gradient(offset + 1e-4).unflatten(1, (-1, 3, 2, 2))  # [B, G, kh, kw, 2, h, w]
    own, num_outside = offset.unflatten(1, (-1, 3, 2, 2)), 0
    for u, v, i, j in itertools.product(range(3), range(2), *map(range, offset.shape[2:])):
        steps = zip(*pair, (i, j), (u, v))
        start = torch.tensor([n * s - p + tap * d for s, p, d, n, tap in steps])
        places = own[:, :, u, v, :, i, j] + start  # [B, G, 2]
        outside = (places <= -1).any(-1)
        want[:, :, u, v, :, i, j][outside] = 0
        num_outside += (places == -1).any(-1).sum()
    assert num_outside > 10
    torch.testing.assert_close(gradient(offset), want.flatten(1, 4), atol=1e-2, rtol=1e-2)


def first_values(tensor: torch.Tensor, channels: int, h: int, w: int) -> torch.Tensor:
    out = torch.zeros(len(tensor), channels, h, w, dtype=tensor.dtype)
    for b, c, i, j in itertools.product(*map(range, out.shape)):
        out[b, c, i, j] = tensor[b].flatten()[(c * h + i) * w + j]
    return out


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@each_convolution
def test_modulated_deform_conv2d_with_offsets_of_a_larger_map(settings, memory_format):
    x, small, _, weight, bias, pair = conv_inputs(*settings)
    taps, (h, w) = 6 * settings[4], small.shape[2:]
    offset = non_integer_offsets(2, 2 * taps, h + 2, w + 3).contiguous(memory_format=memory_format)
    mask = torch.rand(2, taps, h + 2, w + 3).double().contiguous(memory_format=memory_format)
    read = first_values(offset, 2 * taps, h, w), first_values(mask, taps, h, w)
    want = reference_deform_conv(x, *read, weight, bias, pair, *settings[3:])
    torch.testing.assert_close(mm.modulated_deform_conv2d(x, offset, mask, weight, bias, *settings), want)

    tensors = [t.requires_grad_() for t in (x, offset, mask, weight, bias)]
    assert gradcheck(lambda *t: mm.modulated_deform_conv2d(*t, *settings), tensors, fast_mode=True)
    mm.modulated_deform_conv2d(*tensors, *settings).sum().backward()
    for tensor, count in ((offset, 2 * taps * h * w), (mask, taps * h * w)):
        assert tensor.grad.flatten(1)[:, :count].ne(0).any(1).all()
        assert (tensor.grad.flatten(1)[:, count:] == 0).all()


@pytest.mark.parametrize("name", ["offset", "mask"])
@pytest.mark.parametrize("shape", ["channels", "map"])
def test_offset_or_mask_smaller_than_the_output_is_an_error(name, shape):
    tensors = dict(zip(("x", "offset", "mask", "weight"), conv_inputs(1, 1, 1, 1, 1)))
    tensors[name] = tensors[name][:, 1:] if shape == "channels" else tensors[name][:, :, 1:]
    with pytest.raises(ValueError, match=name):
        mm.modulated_deform_conv2d(*tensors.values(), None, 1, 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_deformable_convolutions_half_and_layers(dtype):
    x, offset, mask, weight, bias, _ = (t.to(dtype) if torch.is_tensor(t) else t for t in conv_inputs(1, 1, 1, 1, 1))
    weight.requires_grad_()
    out = mm.modulated_deform_conv2d(x, offset, mask, weight, bias, 1, 1)
    out.sum().backward()
    want = mm.modulated_deform_conv2d(*(t.float() for t in (x, offset, mask, weight, bias)), 1, 1)
    assert out.dtype == weight.grad.dtype == dtype
    torch.testing.assert_close(out.float(), want, rtol=0.01, atol=0.01)
    assert mm.deform_conv2d(x, offset, weight, 1, 1).dtype == dtype
    for pack in (mm.DeformConv2dPack, mm.ModulatedDeformConv2dPack):
        image = torch.randn(2, 4, 5, 5, requires_grad=True)
        result = pack(4, 3, 3, padding=1)(image)
        result.sum().backward()
        assert result.shape == (2, 3, 5, 5)
        assert image.grad.abs().sum() > 0


run = mm.multi_scale_deform_attn.MultiScaleDeformableAttnFunction.apply


def attention_inputs(batch=2, heads=2, dim=3, queries=4, points=2, dtype=torch.float64):
    sizes = torch.tensor([[4, 5], [2, 3]])
    starts = torch.tensor([0, 20])
    value = torch.randn(batch, 26, heads, dim).to(dtype)
    # Some samples fall outside of the map.
    locations = (torch.rand(batch, queries, heads, 2, points, 2) * 1.4 - 0.2).to(dtype)
    weights = torch.rand(batch, queries, heads, 2, points).to(dtype)
    return value, sizes, starts, locations, weights


def test_multi_scale_deformable_attention():
    value, sizes, starts, locations, weights = attention_inputs()
    want = torch.zeros(2, 4, 2, 3).double()
    for b, q, m, level, p in torch.cartesian_prod(*map(torch.arange, weights.shape)).tolist():
        h, w = sizes[level].tolist()
        planes = value[b, starts[level] : starts[level] + h * w, m].reshape(h, w, 3)
        x, y = (locations[b, q, m, level, p] * torch.tensor([w, h]) - 0.5).tolist()
        for d in range(3):
            want[b, q, m, d] += weights[b, q, m, level, p] * bilinear_zero_padded(planes[..., d], y, x)
    torch.testing.assert_close(run(value, sizes, starts, locations, weights, 64), want.flatten(2))
    tensors = [t.requires_grad_() for t in (value, locations, weights)]
    assert gradcheck(lambda v, s, a: run(v, sizes, starts, s, a, 64), tensors)


def test_multi_scale_deformable_attention_half_empty_and_layer():
    value, sizes, starts, locations, weights = attention_inputs(dtype=torch.float16)
    value.requires_grad_()
    out = run(value, sizes, starts, locations, weights, 64)
    out.sum().backward()
    want = run(*(t.float() if t.is_floating_point() else t for t in (value, sizes, starts, locations, weights)), 64)
    assert out.dtype == value.grad.dtype == torch.float16
    torch.testing.assert_close(out.float(), want, rtol=0.01, atol=0.01)
    assert run(value, sizes, starts, locations[:, :0], weights[:, :0], 64).shape == (2, 0, 6)
    layer = mm.MultiScaleDeformableAttention(embed_dims=8, num_heads=2, num_levels=2, num_points=2, batch_first=True)
    out = layer(
        torch.randn(1, 5, 8),
        value=torch.randn(1, 26, 8),
        reference_points=torch.rand(1, 5, 2, 2),
        spatial_shapes=sizes,
        level_start_index=starts,
    )
    assert out.shape == (1, 5, 8)


@pytest.fixture
def reads(monkeypatch):
    shapes, tolist = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: shapes.append(tuple(self.shape)) or tolist(self))
    return shapes


def test_layers_of_multi_scale_attention_read_their_sizes_once(reads):
    """On a GPU every read waits for all kernels before it."""
    value, sizes, starts, locations, weights = attention_inputs()
    total = 0
    for layer in range(4):
        floats = [(t + 0).requires_grad_() for t in (value, locations, weights)]
        total = total + (1 + layer) * run(floats[0], sizes, starts, *floats[1:], 64).square().sum()
    total.backward()
    assert reads == [(2, 3)]


def test_sizes_that_change_in_place_are_read_again():
    value, sizes, starts, locations, weights = attention_inputs()
    first = run(value, sizes, starts, locations, weights, 64)
    for change in (torch.no_grad, torch.inference_mode):
        others = torch.tensor([[5, 4], [3, 2]])
        want = run(value, others, starts, locations, weights, 64)
        with change():
            same = sizes.clone()
            assert torch.equal(run(value, same, starts, locations, weights, 64), first)
            same.copy_(others)
            assert torch.equal(run(value, same, starts, locations, weights, 64), want)
    assert not torch.equal(first, want)


def test_backward_of_multi_scale_attention_repeats_only_the_sampling():
    """Nothing but what its kernel does: samples, for the weights' gradients, and the backward of sampling."""
    value, sizes, starts, locations, weights = (t.requires_grad_(t.is_floating_point()) for t in attention_inputs())
    with CostCounter() as forward:
        out = run(value, sizes, starts, locations, weights, 64)
    with CostCounter() as backward:
        out.backward(torch.ones_like(out))
    assert forward.calls["aten.grid_sampler_2d"] == backward.calls["aten.grid_sampler_2d"] == len(sizes)
    assert backward.calls["aten.grid_sampler_2d_backward"] == len(sizes)
    assert backward.calls["aten.mul"] == 2 * len(sizes) + 1  # twice by the gradient of the output; points to -1..1
