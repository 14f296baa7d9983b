"""Absolute position embedding of a feature map."""

import torch
from timm.layers import trunc_normal_
from torch import Tensor, nn

from vitdense.layers.resize import resize_grid


class AbsolutePosition(nn.Module):
    """Learned embedding of every cell of the pretraining grid, resized bicubically to the map it meets.

    Swin's Table 4 ablates it; no published dense Swin uses it.

    Args:
        grid: Pretraining grid (h, w) in tokens.
        dim: Channels.
    """

    def __init__(self, grid: tuple[int, int], dim: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(1, *grid, dim))
        trunc_normal_(self.table, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Adds the embedding to ``x`` ``[B, H, W, C]``."""
        return x + resize_grid(self.table, (x.shape[1], x.shape[2])).to(x.dtype)
