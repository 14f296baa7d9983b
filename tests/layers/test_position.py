import copy

import pytest
import torch
from torch import nn

from vitdense.layers.position import CACHED_SIZES, AbsolutePosition, ExtraTokens
from vitdense.layers.resize import resize_grid


@pytest.fixture
def position():
    torch.manual_seed(0)
    return AbsolutePosition((3, 4), 8).eval()


def expected(position, size):
    return resize_grid(position.table.detach(), size)


def test_a_size_is_resized_once_in_eval_mode(position):
    with torch.no_grad():
        first = position.at((5, 7))
        assert position.at((5, 7)) is first
        assert torch.equal(first, expected(position, (5, 7)))
        assert torch.equal(position.at((7, 5)), expected(position, (7, 5)))


@pytest.mark.parametrize("change", ["in place", "new data", "data, then eval", "load", "dtype"])
def test_a_change_of_the_weights_is_seen(position, change):
    with torch.no_grad():
        before = position.at((5, 7))
        if change == "in place":
            position.table.mul_(2)
        elif change == "new data":
            position.table.data = torch.randn(1, 3, 4, 8)
        elif change == "data, then eval":  # as the moving average of mmengine does before an evaluation
            position.table.data.mul_(2)
            position.eval()
        elif change == "load":
            position.load_state_dict({"table": torch.randn(1, 3, 4, 8)})
        else:
            position.double()
        after = position.at((5, 7))
        assert torch.equal(after, expected(position, (5, 7)))
    assert before.dtype != after.dtype or not torch.equal(before, after)


@pytest.mark.parametrize("how", ["data", "assign"])
def test_a_table_in_the_memory_of_an_old_one_is_another(position, how):
    with torch.no_grad():
        for i in range(10):
            if how == "data":
                position.table.data = position.table.data * 2
                position.table.data = position.table.data * 2
            else:
                position.load_state_dict({"table": torch.full((1, 3, 4, 8), float(i))}, assign=True)
            assert torch.equal(position.at((5, 7)), expected(position, (5, 7))), i


def test_a_model_built_in_inference_mode_runs():
    with torch.inference_mode():
        position = AbsolutePosition((3, 4), 8).eval()
        assert position.at((5, 7)).shape == (1, 5, 7, 8)


def test_gradients_flow_and_nothing_is_kept_in_training(position):
    for mode in (True, False):
        position.train(mode)
        position.table.grad = None
        position.at((5, 7)).sum().backward()
        assert position.table.grad.abs().sum() > 0
        assert position.at((5, 7)) is not position.at((5, 7))
    position.train()
    with torch.no_grad():
        assert position.at((5, 7)) is not position.at((5, 7))


def test_the_cache_is_bounded_and_part_of_nothing(position):
    with torch.no_grad():
        for side in range(5, 5 + 2 * CACHED_SIZES):
            position.at((side, side))
        assert len(position._resized) == CACHED_SIZES
    assert list(position.state_dict()) == ["table"]
    twin = copy.deepcopy(position)
    nn.init.zeros_(twin.table)
    with torch.no_grad():
        assert not twin.at((20, 20)).any()


def test_extra_tokens_stand_in_front_with_their_positions():
    torch.manual_seed(0)
    tokens = ExtraTokens(8, distilled=True, position=True)
    x = torch.randn(2, 5, 8)
    y = tokens(x)
    assert torch.equal(y[:, 2:], x)
    assert torch.equal(y[:, 0], (tokens.cls_token + tokens.cls_position)[0].expand(2, -1))
    assert torch.equal(y[:, 1], (tokens.dist_token + tokens.dist_position)[0].expand(2, -1))
    assert len(ExtraTokens(8, distilled=False, position=False)(x)[0]) == 6
