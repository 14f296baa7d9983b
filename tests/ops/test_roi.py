"""RoIAlign of mmcv on the stand-in, against a reference loop over the samples."""

import itertools
import math

import pytest
import torch
from torch.autograd import gradcheck

from vitdense.ops import ops_in_use, stand_in

mm = pytest.importorskip("mmcv.ops")
pytestmark = pytest.mark.skipif(ops_in_use().kind != "stand-in", reason="a compiled mmcv is in use")


def bilinear(plane: torch.Tensor, y: float, x: float) -> float:
    h, w = plane.shape
    if not (-1 <= y <= h and -1 <= x <= w):
        return 0.0
    y, x = min(max(y, 0.0), h - 1.0), min(max(x, 0.0), w - 1.0)
    y0, x0 = int(y), int(x)
    y1, x1 = min(y0 + 1, h - 1), min(x0 + 1, w - 1)
    top = plane[y0, x0] * (1 - x + x0) + plane[y0, x1] * (x - x0)
    low = plane[y1, x0] * (1 - x + x0) + plane[y1, x1] * (x - x0)
    return float(top * (1 - y + y0) + low * (y - y0))


def reference_roi_align(x, rois, bins, scale, ratio, aligned):
    out = x.new_zeros(len(rois), x.shape[1], *bins)
    for k, (image, *box) in enumerate(rois.tolist()):
        x1, y1, x2, y2 = (v * scale - (0.5 if aligned else 0) for v in box)
        width, height = (x2 - x1, y2 - y1) if aligned else (max(x2 - x1, 1), max(y2 - y1, 1))
        step_y, step_x = height / bins[0], width / bins[1]
        ny, nx = (ratio, ratio) if ratio > 0 else (math.ceil(step_y), math.ceil(step_x))
        for c, i, j in itertools.product(*map(range, out.shape[1:])):
            ys = [y1 + (i + (a + 0.5) / ny) * step_y for a in range(ny)]
            xs = [x1 + (j + (b + 0.5) / nx) * step_x for b in range(nx)]
            values = [bilinear(x[int(image), c], *place) for place in itertools.product(ys, xs)]
            out[k, c, i, j] = sum(values) / max(len(values), 1)
    return out


# Two images. Inside, across the border, much larger than the map, outside, empty.
ROIS = torch.tensor(
    [
        [0, 3.0, 2.2, 17.5, 13.1],
        [1, -6.3, 5.0, 8.0, 30.7],
        [0, -40.0, -30.0, 60.0, 55.0],
        [1, 90.0, 90.0, 99.0, 99.0],
        [1, 7.3, 6.1, 7.3, 6.1],
    ],
    dtype=torch.float64,
)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("ratio", [0, 2])
def test_roi_align(ratio, aligned):
    x = torch.randn(2, 2, 7, 9, dtype=torch.float64)
    layer = mm.RoIAlign((3, 2), 0.5, ratio, "avg", aligned)
    want = reference_roi_align(x, ROIS, (3, 2), 0.5, ratio, aligned)
    torch.testing.assert_close(layer(x, ROIS), want)
    assert gradcheck(lambda t: layer(t, ROIS), x.requires_grad_(), fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_roi_align_types(dtype):
    x, rois = torch.randn(2, 3, 7, 9).to(dtype).requires_grad_(), ROIS.to(dtype)
    layer = mm.RoIAlign(2, 0.5, 2)
    out = layer(x, rois)
    out.sum().backward()
    reference = x.detach().double().requires_grad_()
    want = layer(reference, rois.double())
    want.sum().backward()
    assert out.dtype == x.grad.dtype == dtype
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), want, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(x.grad.double(), reference.grad, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rois_keep_their_coordinates_with_half_precision_maps(dtype):
    """Far to the right, where the half types have whole pixels or every eighth one."""
    x = torch.randn(1, 2, 4, 400).to(dtype).requires_grad_()
    rois = torch.tensor([[0, 1100.3, 1.2, 1289.7, 13.6], [0, 1500.4, 2.3, 1598.7, 15.9]])
    layer = mm.RoIAlign(7, 0.25, 2)
    reference = x.detach().float().requires_grad_()
    out, want = layer(x, rois), layer(reference, rois)
    for values in (out, want):
        values.square().sum().backward()
    torch.testing.assert_close(out, want.to(dtype))
    tolerance = 16 * torch.finfo(dtype).eps  # of sums of half gradients
    torch.testing.assert_close(x.grad.float(), reference.grad, atol=tolerance, rtol=tolerance)


def test_no_rois():
    x = torch.randn(2, 4, 5, 5, requires_grad=True)
    out = mm.RoIAlign(3)(x, torch.zeros(0, 5))
    out.sum().backward()
    assert out.shape == (0, 4, 3, 3)
    assert x.grad.abs().sum() == 0


@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("aligned", [True, False])
def test_deterministic_backward_equals_torchvision(ratio, aligned):
    """Used on CUDA under `torch.use_deterministic_algorithms`; here it runs on the CPU."""
    grad, shape = torch.randn(5, 3, 3, 2, dtype=torch.float64), torch.Size((2, 3, 7, 9))
    total = stand_in._deterministic_backward(grad, ROIS, 0.5, ratio, aligned, shape)
    want = torch.ops.torchvision._roi_align_backward(grad, ROIS, 0.5, 3, 2, *shape, ratio, aligned)
    torch.testing.assert_close(total, want)
    assert total.abs().sum() > 0
    assert stand_in._deterministic_backward(grad[:0], ROIS[:0], 0.5, ratio, aligned, shape).abs().sum() == 0
