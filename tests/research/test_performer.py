import math

import pytest
import torch
from conftest import relative_error
from torch import nn

from vitdense.flops import macs
from vitdense.layers.attention import attend
from vitdense.research.swin_ablations.performer import EPSILON, PerformerAttention, orthogonal_features


def randomised(dim, heads, std):
    layer = PerformerAttention(dim, heads, qkv_bias=True)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=std)
    return layer


@torch.no_grad()
def test_attention_is_the_definition():
    """Shares of keys are products of positive features, exp(w x - x^2 / 2), of both."""
    heads, d, (h, w) = 2, 4, (2, 3)
    layer = randomised(heads * d, heads, 0.3).double()
    assert layer.features.shape == (int(4 * math.log(4)), 4)
    x = torch.randn(2, h, w, heads * d, dtype=torch.float64)
    got = layer(x)
    for image, mapped in zip(x.flatten(1, 2), got.flatten(1, 2)):
        qkv = image @ layer.qkv.weight.T + layer.qkv.bias
        out = torch.zeros(h * w, heads, d, dtype=torch.float64)
        for head in range(heads):
            q, k, v = (qkv.view(h * w, 3, heads, d)[:, i, head] for i in range(3))

            def exponents(y):
                return (y / d**0.25) @ layer.features.T - (y / d**0.25).square().sum(-1, keepdim=True) / 2

            of_q = (exponents(q) - exponents(q).amax(1, keepdim=True)).exp() + EPSILON
            of_k = (exponents(k) - exponents(k).max()).exp() + EPSILON
            shares = of_q @ of_k.T  # [queries, keys]
            out[:, head] = shares @ v / shares.sum(1, keepdim=True)
        torch.testing.assert_close(mapped, out.flatten(1) @ layer.proj.weight.T + layer.proj.bias)


@torch.no_grad()
def test_many_features_are_softmax_attention():
    """With 16 times the features the error is a fourth, and there is no bias."""
    layer, x = randomised(16, 2, 0.1), torch.randn(1, 4, 5, 16)
    q, k, v = (y.transpose(1, 2) for y in layer.qkv(x).flatten(1, 2).unflatten(-1, (3, 2, -1)).unbind(2))

    def project(y):
        return layer.proj(y.transpose(1, 2).flatten(2)).view(x.shape)

    want, errors = project(attend(q, k, v)), []
    for features in (16, 256, 4096):
        layer.features = orthogonal_features(features, 8)
        errors.append(relative_error(layer(x), want))
    assert errors[0] > 2 * errors[1] > 4 * errors[2], errors
    even = relative_error(project(v.mean(2, keepdim=True).expand_as(v)), want)
    assert errors[2] < even / 5


@torch.no_grad()
@pytest.mark.parametrize("autocast", [True, False])
def test_half_precision_of_a_large_map(autocast):
    """Sums over 6144 positions and 110 features are above 65504, the largest number of float16."""
    layer, x = randomised(32, 1, 0.02), torch.randn(1, 64, 96, 32)
    want = layer(x)
    with torch.autocast("cpu", torch.float16, enabled=autocast):
        got = layer(x) if autocast else layer.half()(x.half())
    assert got.dtype == torch.float16
    assert relative_error(got.float(), want) < 2e-3


def test_features_are_orthogonal_and_as_long_as_normal_vectors():
    features = orthogonal_features(40, 16)
    assert features.shape == (40, 16)
    group = features[16:32]
    products = group @ group.T
    assert torch.allclose(products, torch.diag(products.diag()), atol=1e-4)
    assert orthogonal_features(4096, 4).mean(0).abs().max() < 0.1  # no direction is likelier than its opposite
    assert orthogonal_features(4096, 16).norm(dim=1).mean().item() == pytest.approx(3.94, abs=0.05)  # of 16 channels


def test_cost_grows_with_the_tokens():
    """Twice the tokens, twice the multiply-adds; softmax attention has four times as many of pairs."""
    with torch.device("meta"), torch.no_grad():
        layer = PerformerAttention(96, 3, qkv_bias=True)
        costs = [macs(lambda side=side: layer(torch.empty(1, 8, side, 96)))[1] for side in (8, 16, 32)]
    assert costs[1] / costs[0] == costs[2] / costs[1] == 2
