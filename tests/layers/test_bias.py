import copy
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from vitdense.layers.bias import DecomposedBias, LogCpbBias
from vitdense.layers.layout import relative_index_1d
from vitdense.layers.position import AbsolutePosition, ExtraTokens


def make_log_cpb(window, pretrained=None, heads=2):
    bias = LogCpbBias(window, heads, pretrained)
    for parameter in bias.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return bias


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 0.01), (torch.bfloat16, 0.1)])
def test_log_cpb_bias_is_computed_in_float32(dtype, tolerance):
    bias = make_log_cpb((4, 4))
    want = bias()
    with torch.autocast("cpu", dtype):
        assert torch.equal(bias(), want)
    got = bias.to(dtype)()  # only its parameters and coordinates are rounded
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, rtol=0, atol=16 * tolerance)


def exact_row(i, j, q, k):
    """Row of a table of ``2 max(q, k) - 1`` for query i of q and key j of k."""
    of_query, of_key = max(Fraction(k, q), 1), max(Fraction(q, k), 1)
    return math.trunc(i * of_query - j * of_key + (k - 1) * of_key)


@pytest.mark.parametrize(
    ("q", "k", "last"),
    [(56, 14, 107), (14, 28, 53), (50, 13, 95), (7, 14, 25), (5, 3, 7), (14, 14, 26), (1, 1, 0), (1, 4, 3), (4, 1, 3)],
)
def test_axis_index_places_both_on_the_finer_grid(q, k, last):
    index = relative_index_1d(q, k)
    assert index.tolist() == [[exact_row(i, j, q, k) for j in range(k)] for i in range(q)]
    assert 2 * max(q, k) - 1 > last
    # Query 0 and the last key, and the other way round.
    assert [index.min(), index.max()] == [index[0, -1], index[-1, 0]] == [0, last]


@pytest.mark.parametrize(("q", "k"), [(39, 10), (78, 20), (141, 36)])
def test_axis_index_is_rounded_in_float32(q, k):
    """As in the authors' code. In exact arithmetic some rows of such sizes would be the next."""
    step = q / k
    rows = [
        [int(np.float32(i) - np.float32(j) * np.float32(step) + np.float32((k - 1) * step)) for j in range(k)]
        for i in range(q)
    ]
    assert relative_index_1d(q, k).tolist() == rows
    more = torch.tensor([[exact_row(i, j, q, k) for j in range(k)] for i in range(q)]) - relative_index_1d(q, k)
    assert set(more.unique().tolist()) == {0, 1}


def terms(bias, q, keys):
    return [along[..., :n] for along, n in zip(bias(q, keys, keys[0] + 2), keys)]


def test_decomposed_bias_follows_the_dtype_of_the_queries_and_starts_small():
    bias = DecomposedBias((16, 16), 32)
    q = torch.randn(1, 16, 16, 1, 32)
    want, got = terms(bias, q, (8, 20)), terms(bias, q.bfloat16(), (8, 20))
    assert all(x.dtype == torch.bfloat16 for x in got)
    torch.testing.assert_close(got[0].float(), want[0], rtol=0.02, atol=0.02)
    for table in (bias.rel_pos_h, bias.rel_pos_w):
        assert table.std().item() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize(
    "layer",
    [
        AbsolutePosition((4, 6), 8),
        AbsolutePosition((3, 3), 8, "dinov2"),
        ExtraTokens(8, distilled=False, position=False, registers=1),
    ],
    ids=["1d", "dinov2", "tokens"],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtype_of_the_residual_stream(layer, dtype):
    """A model in one dtype stays in it; under autocast, which makes the map in half precision, it is in float32."""
    x = torch.randn(2, 4, 6, 8)
    x = x.flatten(1, 2) if isinstance(layer, ExtraTokens) else x
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x.bfloat16()).dtype == torch.float32
    assert copy.deepcopy(layer).to(dtype)(x.to(dtype)).dtype == dtype
