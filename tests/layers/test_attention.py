import pytest
import torch
from conftest import relative_error

from vitdense.layers import attention
from vitdense.layers.attention import attend, attend_decomposed


def naive(q, k, v, bias, scale):
    logits = scale * torch.einsum("bhqd,bhkd->bhqk", q, k)
    weights = (logits + (0 if bias is None else bias)).exp()
    return torch.einsum("bhqk,bhkd->bhqd", weights / weights.sum(-1, keepdim=True), v)


@pytest.mark.parametrize("bias_shape", [None, (1, 2, 5, 7), (3, 1, 5, 7), (3, 2, 5, 7)])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_attend_is_softmax_attention(bias_shape, scale):
    q, k, v = (torch.randn(3, 2, n, 4, dtype=torch.float64) for n in (5, 7, 7))
    bias = None if bias_shape is None else torch.randn(bias_shape, dtype=torch.float64)
    want = naive(q, k, v, bias, 4**-0.5 if scale is None else scale)
    torch.testing.assert_close(attend(q, k, v, bias, scale), want)
    got = attend(*(t.float() for t in (q, k, v)), None if bias is None else bias.float(), scale)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("needs_grad", [False, True])  # the fused and the composite body
def test_both_bodies_agree(needs_grad):
    q, k, v = (torch.randn(6, 2, 5, 4) for _ in range(3))
    bias = torch.randn(1, 2, 5, 5, requires_grad=needs_grad)
    torch.testing.assert_close(attend(q, k, v, bias), naive(q, k, v, bias, 0.5))


def test_gradients_reach_all_inputs():
    q, k, v, bias = (
        torch.randn(shape, dtype=torch.float64, requires_grad=True)
        for shape in ((2, 1, 3, 2), (2, 1, 4, 2), (2, 1, 4, 2), (1, 1, 3, 4))
    )
    assert torch.autograd.gradcheck(attend, (q, k, v, bias))


def test_bias_follows_the_dtype_of_the_queries():
    q = torch.randn(1, 1, 4, 8, dtype=torch.bfloat16)
    assert attend(q, q, q, torch.zeros(1, 1, 4, 4)).dtype == torch.bfloat16


def decomposed_inputs(nq, h, w, d, heads=2, batch=3, dtype=torch.float64):
    """Queries, keys, values, and the terms of the rows and the columns."""
    shapes = (nq, d), (h * w, d), (h * w, d), (nq, h), (nq, w)
    return [torch.randn(batch, heads, *shape, dtype=dtype) for shape in shapes]


def naive_decomposed(q, k, v, along_h, along_w, scale):
    """Key by key, row-major."""
    w = along_w.shape[-1]
    bias = [along_h[..., key // w] + along_w[..., key % w] for key in range(k.shape[2])]
    return naive(q, k, v, torch.stack(bias, dim=-1), scale)


# Queries, rows and columns of the keys, channels. Of the last, the sum of the terms is the largest tensor by far.
DECOMPOSED = [(5, 2, 3, 4), (3, 1, 4, 2), (1, 1, 1, 2), (12, 4, 1, 3), (72, 8, 8, 2)]


@pytest.mark.parametrize("sizes", DECOMPOSED)
@pytest.mark.parametrize("needs_grad", [(), (0,), (3, 4), (0, 1, 2, 3, 4)])  # the bodies differ
def test_attend_decomposed_is_softmax_attention(sizes, needs_grad):
    inputs = decomposed_inputs(*sizes)
    want = naive_decomposed(*inputs, 0.3)
    for i in needs_grad:
        inputs[i].requires_grad_()
    torch.testing.assert_close(attend_decomposed(*inputs, 0.3), want, rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        torch.testing.assert_close(attend_decomposed(*inputs, 0.3), want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("pairs", [1, 50, 6 * 40, 2 * 6 * 40 + 1, 10**6])  # an image has 2 heads of 6 times 40 of them
def test_attend_decomposed_in_parts(pairs, monkeypatch):
    monkeypatch.setattr(attention, "BIAS_ELEMENTS", pairs)
    inputs = decomposed_inputs(6, 5, 8, 4)
    got = attend_decomposed(*inputs, 0.3)
    torch.testing.assert_close(got, naive_decomposed(*inputs, 0.3), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("sizes", DECOMPOSED)
def test_gradients_of_attend_decomposed(sizes):
    inputs = [x.requires_grad_() for x in decomposed_inputs(*sizes, batch=1)]
    assert torch.autograd.gradcheck(lambda *x: attend_decomposed(*x, 0.3), inputs, fast_mode=True)


@pytest.mark.parametrize("sizes", DECOMPOSED)
@pytest.mark.parametrize("needs_grad", [False, True])
def test_attend_decomposed_in_half_precision(sizes, needs_grad):
    inputs = decomposed_inputs(*sizes)
    want = naive_decomposed(*inputs, 0.3)
    halves = [x.bfloat16().requires_grad_(needs_grad) for x in inputs]
    got = attend_decomposed(*halves, 0.3)
    assert got.dtype == torch.bfloat16
    assert relative_error(got.detach().double(), want) < 0.02
