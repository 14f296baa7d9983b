import pytest
import torch

from vitdense.layers.blocks import PatchEmbed, PatchMerging, PostNormMerging


def test_patch_embed_pads_right_and_bottom():
    embed = PatchEmbed(3, 8, 4, norm=False)
    x = torch.randn(1, 3, 9, 14)
    padded = torch.zeros(1, 3, 12, 16)
    padded[..., :9, :14] = x
    out = embed(x)
    assert out.shape == (1, 3, 4, 8)
    patch = padded[0, :, 8:12, 12:16]  # the corner
    want = (embed.proj.weight * patch).sum((1, 2, 3)) + embed.proj.bias
    torch.testing.assert_close(out[0, 2, 3], want)


@pytest.mark.parametrize("kind", [PatchMerging, PostNormMerging])
def test_patch_merging_order_of_neighbours(kind):
    """(row, column) offsets (0,0), (1,0), (0,1), (1,1), as the released weights expect."""
    merging = kind(2)
    torch.nn.init.normal_(merging.norm.weight)
    torch.nn.init.normal_(merging.norm.bias)
    x = torch.randn(1, 3, 5, 2)
    padded = torch.zeros(1, 4, 6, 2)
    padded[:, :3, :5] = x
    out = merging(x)
    assert out.shape == (1, 2, 3, 4)
    for i in range(2):
        for j in range(3):
            cells = torch.cat([padded[0, 2 * i + r, 2 * j + c] for r, c in ((0, 0), (1, 0), (0, 1), (1, 1))])
            norm, linear = merging.norm, merging.reduction
            want = linear(norm(cells)) if kind is PatchMerging else norm(linear(cells))
            torch.testing.assert_close(out[0, i, j], want)
