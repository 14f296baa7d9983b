import pytest
import torch
from test_vit import by_hand, linear, mlp_by_hand

from vitdense.research.htcpp.global_block import GlobalBlock


@pytest.mark.parametrize("size", [(3, 5), (1, 1), (8, 4)])
def test_global_block_is_attention_and_mlp_on_the_last_map_of_any_size(size):
    torch.manual_seed(0)
    block = GlobalBlock((4, 12), num_heads=3).double()
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    first, last = torch.randn(2, 4, 9, 9).double(), torch.randn(2, 12, *size).double()
    x = last.flatten(2).mT  # [2, N, 12]
    y = by_hand(block.norm1, x, block.norm1.eps)
    q, k, v = linear(block.qkv, y).split(12, dim=-1)  # [2, N, 12] each
    heads = []
    for of_head in (slice(0, 4), slice(4, 8), slice(8, 12)):
        weights = (q[..., of_head] @ k[..., of_head].mT / 2).softmax(-1)  # [2, N, N]
        heads.append(weights @ v[..., of_head])
    x = x + linear(block.proj, torch.cat(heads, -1))
    want = x + mlp_by_hand(block.mlp, by_hand(block.norm2, x, block.norm2.eps))
    same, got = block((first, last))
    assert same is first
    torch.testing.assert_close(got, want.mT.unflatten(2, size))


def test_drop_path_drops_whole_branches_in_training():
    torch.manual_seed(0)
    block = GlobalBlock((8,), num_heads=2, drop_path_rate=0.999)
    x = torch.randn(1, 8, 3, 3)
    assert torch.equal(block((x,))[0], x)
    assert not torch.equal(block.eval()((x,))[0], x)
