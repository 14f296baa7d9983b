import pytest
import torch

from vitdense.layers.blocks import OverlapPatchEmbed, PatchEmbed, PatchMerging, PostNormMerging


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


@pytest.mark.parametrize("size", [(8, 12), (9, 14), (31, 33), (1, 3)])
def test_overlapping_patches(size):
    """7x7 pixels around every fourth, with zeros outside the image."""
    embed = OverlapPatchEmbed(3, 8)
    assert set(embed.state_dict()) == {"proj.weight", "proj.bias"}
    x = torch.randn(2, 3, *size)
    padded = torch.zeros(2, 3, size[0] + 6, size[1] + 6)
    padded[..., 3:-3, 3:-3] = x
    out = embed(x)
    h, w = -(-size[0] // 4), -(-size[1] // 4)
    assert out.shape == (2, h, w, 8)
    for i in range(h):
        for j in range(w):
            patch = padded[1, :, 4 * i : 4 * i + 7, 4 * j : 4 * j + 7]
            want = (embed.proj.weight * patch).sum((1, 2, 3)) + embed.proj.bias
            torch.testing.assert_close(out[1, i, j], want, rtol=1e-5, atol=1e-5)


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
