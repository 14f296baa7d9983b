import torch

from vitdense.layers.bias import TableBias, relative_position_index


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
    assert torch.equal(out[0, :, 1, 5], bias.relative_position_bias_table[bias.index[1, 5]])
