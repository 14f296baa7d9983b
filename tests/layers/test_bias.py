import math

import pytest
import torch

from vitdense.layers.bias import LogCpbBias, TableBias, log_spaced_offsets, relative_position_index


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
    assert out.shape == (1, 2, 6, 6)
    assert torch.equal(out[0, :, 1, 5], bias.relative_position_bias_table.flatten(0, 1)[bias.index[1, 5]])


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
    assert out.shape == (1, 2, 6, 6)
    assert out.std() > 1
    for query in range(6):
        for key in range(6):
            offset = [query // 3 - key // 3, query % 3 - key % 3]
            x = torch.tensor([math.copysign(math.log2(1 + abs(8 * o / 3)) / 3, o) for o in offset])
            torch.testing.assert_close(out[0, :, query, key], 16 * bias.cpb_mlp(x).sigmoid())


def test_log_cpb_bias_of_one_token():
    bias = make_log_cpb((1, 1))
    torch.testing.assert_close(bias()[0, :, 0, 0], 16 * bias.cpb_mlp(torch.zeros(2)).sigmoid())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 0.01), (torch.bfloat16, 0.1)])
def test_log_cpb_bias_is_computed_in_float32(dtype, tolerance):
    bias = make_log_cpb((4, 4))
    want = bias()
    with torch.autocast("cpu", dtype):
        assert torch.equal(bias(), want)
    got = bias.to(dtype)()  # only its parameters and coordinates are rounded
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, rtol=0, atol=16 * tolerance)


def test_log_cpb_bias_on_the_meta_device():
    with torch.device("meta"):
        assert LogCpbBias((4, 4), 2)().shape == (1, 2, 16, 16)
