"""Position embeddings that ViT compares with its own (Dosovitskiy et al., ICLR 2021, appendix D.4)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.init import trunc_normal_

from vitdense.errors import check_choice
from vitdense.layers.resize import resize_grid
from vitdense.models.vit.model import ViT


class AxialPosition(nn.Module):
    """Learned embeddings of column and row, each of half the channels, concatenated (ViT appendix D.4, "2-D").

    Each is resized bicubically to the map, along its axis.
    """

    def __init__(self, grid: tuple[int, int], dim: int) -> None:
        super().__init__()
        self.columns = nn.Parameter(torch.empty(1, 1, grid[1], dim // 2))
        self.rows = nn.Parameter(torch.empty(1, grid[0], 1, dim // 2))
        for half in self.parameters():
            trunc_normal_(half, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Adds the embeddings to ``x`` ``[B, H, W, C]``."""
        h, w = x.shape[1], x.shape[2]
        columns = resize_grid(self.columns, (1, w)).expand(-1, h, -1, -1)  # [1, H, W, C/2]
        rows = resize_grid(self.rows, (h, 1)).expand(-1, -1, w, -1)  # [1, H, W, C/2]
        return torch.cat([columns, rows], dim=-1) + x


# Name -> embedding, from the pretraining grid and the channels.
POSITIONS = {"2d": AxialPosition, "none": lambda grid, dim: nn.Identity()}


class PositionViT(ViT):
    """A ViT with 2-D positions or none. Its class token has no position. Other arguments: see `ViT`.

    Args:
        position: ``'2d'``, half of the channels from the column and half from the row; or ``'none'``.
    """

    def __init__(self, arch: str | Mapping = "deit_small", *, position: str = "2d", **options: Any) -> None:
        check_choice("position", position, POSITIONS)
        self.position = position
        super().__init__(arch, **options)

    def make_position(self, grid: tuple[int, int]) -> nn.Module:
        return POSITIONS[self.position](grid, self.arch.embed_dims)
