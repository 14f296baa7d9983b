import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vitdense.layers.bias import DecomposedBias, LogCpbBias, TableBias, log_spaced_offsets, relative_position_index
from vitdense.layers.layout import relative_index_1d


def test_index_is_the_offset_of_query_and_key():
    wh, ww = 3, 4
    index = relative_position_index((wh, ww))
    for i in range(wh * ww):
        for j in range(wh * ww):
            dh, dw = i // ww - j // ww, i % ww - j % ww
            assert index[i, j] == (dh + wh - 1) * (2 * ww - 1) + (dw + ww - 1)


def test_table_bias_reads_the_table_and_keeps_no_buffer_in_the_state_dict():
    bias = TableBias((2, 3), num_heads=2)
    assert list(bias.state_dict()) == ["relative_position_bias_table"]
    out = bias()
    assert out.shape == (2, 6, 8)  # rows of keys are aligned
    assert torch.equal(
        out[:, 1, 5], bias.relative_position_bias_table.flatten(0, 1)[relative_position_index((2, 3))[1, 5]]
    )


@pytest.mark.parametrize(
    ("window", "trained"), [((8, 8), (8, 8)), ((3, 4), (5, 2)), ((1, 4), (1, 1)), ((3, 2), (1, 4))]
)
def test_log_spaced_offsets(window, trained):
    offsets = log_spaced_offsets(window, trained)
    (h, w), (th, tw) = window, trained
    assert offsets.shape == (1, 2 * h - 1, 2 * w - 1, 2)
    for i in range(2 * h - 1):
        for j in range(2 * w - 1):
            for got, offset, side in zip(offsets[0, i, j], (i - h + 1, j - w + 1), (th, tw)):
                x = 8 * offset / (side - 1 or 1)  # one token has no offset but 0
                assert got.item() == pytest.approx(math.copysign(math.log2(1 + abs(x)) / 3, x))
    if window == trained and min(window) > 1:
        assert offsets.max().item() == pytest.approx(math.log2(9) / 3)
        assert torch.equal(offsets, -offsets.flip(1, 2))


def make_log_cpb(window, pretrained=None, heads=2):
    bias = LogCpbBias(window, heads, pretrained)
    for parameter in bias.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return bias


def test_log_cpb_bias_is_the_mlp_of_the_offset_and_keeps_no_buffer_in_the_state_dict():
    bias = make_log_cpb((2, 3), pretrained=(4, 4))
    assert list(bias.state_dict()) == ["cpb_mlp.0.weight", "cpb_mlp.0.bias", "cpb_mlp.2.weight"]
    out = bias()
    assert out.shape == (2, 6, 8)
    assert out.std() > 1
    for query in range(6):
        for key in range(6):
            offset = [query // 3 - key // 3, query % 3 - key % 3]
            x = torch.tensor([math.copysign(math.log2(1 + abs(8 * o / 3)) / 3, o) for o in offset])
            torch.testing.assert_close(out[:, query, key], 16 * bias.cpb_mlp(x).sigmoid())


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
    """The columns of keys, without the padding of rows."""
    return [along[..., :n] for along, n in zip(bias(q, keys, keys[0] + 2), keys)]


@pytest.mark.parametrize(
    ("size", "queries", "keys"),
    [
        ((4, 6), (4, 6), (4, 6)),
        ((4, 6), (4, 6), (2, 3)),  # keys pooled further
        ((4, 6), (2, 3), (4, 6)),  # queries pooled further
        ((4, 4), (5, 9), (3, 5)),  # another map: both tables are resized, the one longer, the other not
        ((8, 8), (5, 3), (2, 3)),
    ],
)
@torch.no_grad()
def test_decomposed_bias_is_the_sum_of_two_products(size, queries, keys):
    bias = DecomposedBias(size, 3)
    assert {name: tuple(table.shape) for name, table in bias.state_dict().items()} == {
        "rel_pos_h": (2 * size[0] - 1, 3),
        "rel_pos_w": (2 * size[1] - 1, 3),
    }
    q = torch.randn(2, *queries, 2, 3)
    along_h, along_w = terms(bias, q, keys)
    assert along_h.shape == (2, *queries, 2, keys[0])
    assert along_w.shape == (2, *queries, 2, keys[1])
    for table, along, axis in ((bias.rel_pos_h, along_h, 0), (bias.rel_pos_w, along_w, 1)):
        length = 2 * max(queries[axis], keys[axis]) - 1
        rows = F.interpolate(table.T[None], size=length, mode="linear")[0].T
        for place in product(range(queries[0]), range(queries[1]), range(keys[axis])):
            row = rows[exact_row(place[axis], place[2], queries[axis], keys[axis])]
            got = along[:, place[0], place[1], :, place[2]]
            torch.testing.assert_close(got, q[:, place[0], place[1]] @ row)


def test_gradients_of_a_decomposed_bias_reach_both_tables_and_the_queries():
    bias = DecomposedBias((3, 4), 2).double()

    def function(q, rel_pos_h, rel_pos_w):
        tables = {"rel_pos_h": rel_pos_h, "rel_pos_w": rel_pos_w}
        return torch.func.functional_call(bias, tables, (q, (2, 2)))

    inputs = [torch.randn(1, 3, 4, 2, 2).double(), bias.rel_pos_h, bias.rel_pos_w]
    assert torch.autograd.gradcheck(function, [x.detach().requires_grad_() for x in inputs])


def test_decomposed_bias_follows_the_dtype_of_the_queries_and_starts_small():
    bias = DecomposedBias((16, 16), 32)
    q = torch.randn(1, 16, 16, 1, 32)
    want, got = terms(bias, q, (8, 20)), terms(bias, q.bfloat16(), (8, 20))
    assert all(x.dtype == torch.bfloat16 for x in got)
    torch.testing.assert_close(got[0].float(), want[0], rtol=0.02, atol=0.02)
    for table in (bias.rel_pos_h, bias.rel_pos_w):
        assert table.std().item() == pytest.approx(0.02, rel=0.1)
