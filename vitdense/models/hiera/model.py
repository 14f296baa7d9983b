"""Hiera (Ryali et al., ICML 2023) as the image encoder of SAM 2 (Ravi et al., 2024), for dense prediction.

Maps have any size: padding of windows is zero after the norm and visible, as in the authors' code. Pooling and the
tiles of the window position embedding round up and leave out padding; the authors' code fails there.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from timm.layers import DropPath, trunc_normal_
from torch import Tensor, nn

from vitdense.families import find_arch
from vitdense.layers import blocks
from vitdense.layers.attention import attend
from vitdense.layers.blocks import Mlp, OverlapPatchEmbed, init_transformer, max_pool
from vitdense.layers.layout import window_layout
from vitdense.layers.resize import resize_grid
from vitdense.models.base import Backbone, Stage, drop_path_rates
from vitdense.models.hiera.sizes import HIERA

LayerNorm = partial(blocks.LayerNorm, eps=1e-6)


class WindowPosition(nn.Module):
    """A position embedding resized bicubically to the map, plus one of a window, repeated from the top left (Bolya et
    al., "Window attention is bugged", 2023)."""

    def __init__(self, grid: tuple[int, int], window: int, dim: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(1, *grid, dim))
        self.window = nn.Parameter(torch.empty(1, window, window, dim))
        for table in (self.table, self.window):
            trunc_normal_(table, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Adds the embedding to ``x`` ``[B, H, W, C]``: the residual stream, under autocast in float32."""
        windows = window_layout(x, self.window.shape[1:3])
        tiles = windows.unpartition(self.window.flatten(1, 2).expand(math.prod(windows.grid), -1, -1))  # [1, H, W, C]
        return resize_grid(self.table, windows.size) + tiles + x  # the order: see `AbsolutePosition`


class PooledQueryAttention(nn.Module):
    """Self-attention in windows; queries may be max-pooled, keys and values are not.

    Args:
        window: Side in tokens of the input; None attends globally.
        pools: Whether the map is halved.
    """

    def __init__(self, dim: int, dim_out: int, num_heads: int, window: int | None, pools: bool) -> None:
        super().__init__()
        self.num_heads, self.window, self.pools = num_heads, window, pools
        self.qkv = nn.Linear(dim, 3 * dim_out)
        self.proj = nn.Linear(dim_out, dim_out)

    def forward(self, x: Tensor) -> Tensor:
        """Normalised map ``[B, H, W, dim]`` to ``[B, H, W, dim_out]``, of half the sides rounded up if it pools."""
        side = self.window
        windows = window_layout(x, side and (side, side))
        q, k, v = self.qkv(windows.partition(x)).chunk(3, dim=-1)  # [B*nW, N, C] each
        if self.pools:
            pooled = pool_map(windows.unpartition(q))  # [B, h, w, C]
            windows = window_layout(pooled, side and (side // 2, side // 2))
            q = windows.partition(pooled)  # [B*nW, N/4, C]
        heads = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in (q, k, v))  # [B*nW, heads, N, d]
        y = attend(*heads).transpose(1, 2).flatten(2)  # [B*nW, N, C]
        return self.proj(windows.unpartition(y))


def pool_map(x: Tensor) -> Tensor:
    return max_pool(x.permute(0, 3, 1, 2), 2, 2).permute(0, 2, 3, 1)  # [B, h, w, C]


class HieraBlock(nn.Module):
    """Attention and MLP, each on a normalised branch. If channels double, the map is halved, and the skip connection is
    projected and pooled."""

    def __init__(
        self, dim: int, dim_out: int, num_heads: int, window: int | None, mlp_ratio: float, drop_path: float
    ) -> None:
        super().__init__()
        self.norm1 = LayerNorm(dim)
        self.attn = PooledQueryAttention(dim, dim_out, num_heads, window, pools=dim != dim_out)
        self.norm2 = LayerNorm(dim_out)
        self.mlp = Mlp(dim_out, int(dim_out * mlp_ratio))
        self.proj = nn.Linear(dim, dim_out) if dim != dim_out else None
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """``[B, H, W, dim]`` to ``[B, H, W, dim_out]``, of half the sides rounded up if it pools."""
        y = self.norm1(x)
        x = pool_map(self.proj(y)) if self.proj is not None else x  # [B, h, w, dim_out]
        x = x + self.drop_path(self.attn(y))  # [B, h, w, dim_out]
        return x + self.drop_path(self.mlp(self.norm2(x)))  # [B, h, w, dim_out]


class Hiera(Backbone):
    """Hiera of SAM 2: four maps of strides 4, 8, 16 and 32 from an image of any size.

    Each output has its own LayerNorm; the next stage receives the map before that norm. Output i has
    ``embed_dims * 2**i`` channels. Arguments not listed here: see `Backbone`.

    Args:
        arch: ``'tiny'``, ``'small'``, ``'base_plus'``, ``'large'``, or a dict of the fields of `HieraArch`.
    """

    family = "hiera"

    def __init__(
        self, arch: str | Mapping = "tiny", *, mlp_ratio: float = 4.0, drop_path_rate: float = 0.1, **common: Any
    ) -> None:
        super().__init__(drop_path_rate=drop_path_rate, **common)
        row = self.arch = find_arch(arch, HIERA)
        dims = [row.embed_dims * 2**i for i in range(len(row.depths))]
        self.patch_embed = OverlapPatchEmbed(self.in_channels, row.embed_dims)
        self.absolute_pos_embed = WindowPosition(row.position_grid, row.window_sizes[0], row.embed_dims)
        self.stages = nn.ModuleList()
        rates = drop_path_rates(drop_path_rate, sum(row.depths))
        number, dim = 0, dims[0]
        for stage, dim_out in enumerate(dims):
            blocks = []
            for _ in range(row.depths[stage]):
                # The first block of a stage pools its queries, in the windows of the stage before.
                window = row.window_sizes[stage - (dim != dim_out)]
                window = None if number in row.global_indices else window
                heads = row.num_heads * 2**stage
                blocks.append(HieraBlock(dim, dim_out, heads, window, mlp_ratio, rates[number]))
                number, dim = number + 1, dim_out
            self.stages.append(Stage(blocks, with_cp=self.with_cp))
        self.apply(init_transformer)
        self.build_outputs_and_freeze(dims, [4 * 2**i for i in range(len(dims))], norm=LayerNorm)
