"""A published DeiT whose patches see only the k x k patches around them: how local its attention may be, untrained."""

import pytest
import torch
from test_real_weights import deit_tiny, photos, top_1  # noqa: F401
from torch.nn import functional as F

from vitdense.layers.attention import attend
from vitdense.models.vit import model as vit

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
