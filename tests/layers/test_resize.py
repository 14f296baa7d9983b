import pytest
import torch
import torch.nn.functional as F

from vitdense.layers.position import AbsolutePosition
from vitdense.layers.resize import resize_bias_table, resize_grid


@pytest.mark.parametrize(("old", "new"), [((7, 7), (12, 12)), ((12, 12), (7, 7)), ((7, 7), (8, 12)), ((4, 6), (6, 4))])
def test_bias_table_is_plain_bicubic(old, new):
    table = torch.randn((2 * old[0] - 1) * (2 * old[1] - 1), 3)
    grid = table.T.reshape(1, 3, 2 * old[0] - 1, 2 * old[1] - 1)
    want = F.interpolate(grid, size=(2 * new[0] - 1, 2 * new[1] - 1), mode="bicubic").flatten(2)[0].T
    assert torch.equal(resize_bias_table(table, old, new), want)


def test_bias_table_of_the_same_window_is_untouched_and_a_transposed_one_comes_out_transposed():
    table = torch.randn(9 * 13, 2)
    assert torch.equal(resize_bias_table(table, (5, 7), (5, 7)), table)
    turned = table.view(9, 13, 2).transpose(0, 1).reshape(-1, 2)
    a = resize_bias_table(table, (5, 7), (6, 9)).view(11, 17, 2)
    b = resize_bias_table(turned, (7, 5), (9, 6)).view(17, 11, 2)
    torch.testing.assert_close(a, b.transpose(0, 1), rtol=0, atol=1e-6)


def test_constants_are_preserved_and_half_precision_stays_half():
    table = torch.full((169, 3), 0.75, dtype=torch.bfloat16)
    out = resize_bias_table(table, (7, 7), (12, 12))
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, torch.full((529, 3), 0.75, dtype=torch.bfloat16))


def test_a_table_of_another_window_is_refused():
    with pytest.raises(ValueError, match="169 rows, but a window of 8x8 needs 225"):
        resize_bias_table(torch.zeros(169, 3), (8, 8), (7, 7))


def test_absolute_position_is_resized_to_the_map_it_meets():
    position = AbsolutePosition((4, 6), 5)
    x = torch.zeros(2, 4, 6, 5)
    assert torch.equal(position(x)[1], position.table[0])
    want = F.interpolate(position.table.permute(0, 3, 1, 2), size=(7, 3), mode="bicubic").permute(0, 2, 3, 1)
    assert torch.equal(position(torch.zeros(1, 7, 3, 5)), want)
    assert resize_grid(position.table, (4, 6)) is position.table
