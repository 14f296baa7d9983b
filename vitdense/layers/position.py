"""Absolute position embedding of a feature map, and the tokens beside the map."""

import torch
from timm.layers import trunc_normal_
from torch import Tensor, nn

from vitdense.layers.resize import resize_grid

CACHED_SIZES = 8  # of maps for which an `AbsolutePosition` remembers its resized table


class AbsolutePosition(nn.Module):
    """Learned embedding of every cell of the pretraining grid, resized bicubically to the map it meets.

    In eval mode the resized table is kept for the last sizes, until the weights or the mode change. Whoever writes to
    ``table.data``, which torch does not count as a change, calls ``eval()`` again, as every evaluation loop does.

    Args:
        grid: Pretraining grid (h, w) in tokens.
        dim: Channels.
    """

    def __init__(self, grid: tuple[int, int], dim: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(1, *grid, dim))
        trunc_normal_(self.table, std=0.02)
        self._resized: dict[tuple, tuple[Tensor, Tensor]] = {}  # by table and size: the table and what became of it

    def forward(self, x: Tensor) -> Tensor:
        """Adds the embedding to ``x`` ``[B, H, W, C]``."""
        return x + self.at((x.shape[1], x.shape[2])).to(x.dtype)

    def at(self, size: tuple[int, int]) -> Tensor:
        """The embedding of a map (H, W), ``[1, H, W, C]``."""
        has_gradient = torch.is_grad_enabled() and self.table.requires_grad
        cannot_tell = torch.compiler.is_compiling() or self.table.is_inference()  # whether it was changed
        if self.training or has_gradient or cannot_tell:
            return resize_grid(self.table, size)
        key = (*size, self.table._version, self.table.data_ptr(), self.table.dtype, self.table.device)
        if key not in self._resized:
            if len(self._resized) == CACHED_SIZES:
                self._resized.pop(next(iter(self._resized)))  # the oldest
            source = self.table.detach()  # kept too, so that no other table gets its address, which is in the key
            self._resized[key] = source, resize_grid(source, size)
        return self._resized[key][1]

    def train(self, mode: bool = True) -> "AbsolutePosition":
        """As in torch; forgets what was resized."""
        self._resized.clear()
        return super().train(mode)


class ExtraTokens(nn.Module):
    """The class token of a ViT, and the distillation token of a DeiT (section 4), in front of those of the map.

    Args:
        dim: Channels.
        distilled: Whether there is a distillation token.
        position: Whether the tokens have position embeddings (all but DeiT III).
    """

    def __init__(self, dim: int, distilled: bool, position: bool) -> None:
        super().__init__()
        self.names = ("cls", "dist") if distilled else ("cls",)
        self.position = position
        for name in self.names:
            for part in ("token", "position") if position else ("token",):
                self.register_parameter(f"{name}_{part}", nn.Parameter(torch.empty(1, 1, dim)))
                trunc_normal_(getattr(self, f"{name}_{part}"), std=0.02)

    def __len__(self) -> int:
        return len(self.names)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, N, C]`` to ``[B, len(self) + N, C]``."""
        tokens = torch.cat([getattr(self, f"{name}_token") for name in self.names], dim=1)  # [1, E, C]
        if self.position:
            tokens = tokens + torch.cat([getattr(self, f"{name}_position") for name in self.names], dim=1)  # [1, E, C]
        return torch.cat([tokens.to(x.dtype).expand(x.shape[0], -1, -1), x], dim=1)  # [B, E + N, C]
