import pytest
import torch

from vitdense.layers.attention import attend


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
