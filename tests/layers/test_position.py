import torch

from vitdense.layers.position import ExtraTokens


def test_extra_tokens_are_prepended_with_their_positions():
    torch.manual_seed(0)
    tokens = ExtraTokens(8, distilled=True, position=True)
    x = torch.randn(2, 5, 8)
    y = tokens(x)
    assert torch.equal(y[:, 2:], x)
    assert torch.equal(y[:, 0], (tokens.cls_token + tokens.cls_position)[0].expand(2, -1))
    assert torch.equal(y[:, 1], (tokens.dist_token + tokens.dist_position)[0].expand(2, -1))
    assert len(ExtraTokens(8, distilled=False, position=False)(x)[0]) == 6
