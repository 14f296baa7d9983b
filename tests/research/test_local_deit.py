"""A published DeiT whose patches see only the k x k patches around them: how local its attention may be, untrained."""

import pytest
import torch
from test_real_weights import deit_tiny, photos, top_1  # noqa: F401
from torch.nn import functional as F

from vitdense.layers.attention import attend
from vitdense.models.vit import model as vit
from vitdense.research.nat.local import attend_local

GRID = 14  # patches along a side at 224 pixels
# Top-1 in percent of 250 photos: the table of docs/local-attention.md.
TOP_1 = {27: 83.6, 21: 84.4, 15: 81.6, 11: 77.2, 7: 64.8, 3: 16.8}


def local_mask(kernel):
    """For the class token, which sees and is seen by all, and the patches: ``[1 + 196, 1 + 196]``."""
    place = torch.arange(GRID)
    near = (place[:, None] - place).abs() <= kernel // 2  # [14, 14]
    near = (near[:, None, :, None] & near[:, None]).flatten(2).flatten(0, 1)  # [196, 196]
    sees = F.pad(near, (1, 0, 1, 0), value=True)
    return torch.zeros(sees.shape).masked_fill(~sees, -torch.inf)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", TOP_1)
def test_top_1_with_local_attention(deit_tiny, shared_data, kernel, monkeypatch):  # noqa: F811
    """A kernel of 27 covers the grid from every patch: nothing may change."""
    mask = local_mask(kernel)

    def attend_near(qkv, *_):
        y = attend(*(x.transpose(1, 2) for x in qkv.unbind(2)), mask)  # [B, heads, N, d]
        return y.transpose(1, 2).flatten(2)

    monkeypatch.setattr(vit, "attend_windows", attend_near)
    found = top_1(deit_tiny, shared_data / "imagenet", 224)
    print(f"\nDeiT-Ti with {kernel}x{kernel} patches: top-1 {found:.1f} %")
    assert found == pytest.approx(TOP_1[kernel], abs=0.41)  # one photo


@pytest.mark.long
@pytest.mark.parametrize("kernel", [27, 7, 3])
def test_tiles_attend_as_the_mask_says(deit_tiny, shared_data, kernel):  # noqa: F811
    """With the queries, keys and values of every block for a photo; with a kernel of 27 as without a mask."""
    x, _ = next(photos(shared_data / "imagenet", 224))
    mask, seen = local_mask(kernel)[1:, 1:], []
    hooks = [
        block.attn.qkv.register_forward_hook(lambda _module, _args, out: seen.append(out)) for block in deit_tiny.blocks
    ]
    with torch.no_grad():
        deit_tiny(x[None])
        for hook in hooks:
            hook.remove()
        for qkv in seen:
            q, k, v = qkv[:, 1:].unflatten(-1, (3, 3, 64)).unbind(2)  # [1, 196, heads, d] each
            kv = torch.stack([k, v], dim=2).unflatten(1, (GRID, GRID))  # [1, 14, 14, 2, heads, d]
            got = attend_local(q.unflatten(1, (GRID, GRID)), kv, kernel)  # [1, 14, 14, C]
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            want = attend(q, k, v, mask if kernel < 27 else None).transpose(1, 2).flatten(2)
            torch.testing.assert_close(got.flatten(1, 2), want, rtol=1e-5, atol=1e-5)
    assert len(seen) == len(deit_tiny.blocks)
