"""Hiera (Ryali et al., ICML 2023) as the image encoder of SAM 2 (Ravi et al., 2024), for dense prediction.

Maps of any size: padding of windows is zero after the norm and visible, as in the authors' code; pooling and the tiles
of the window position embedding round up and leave padding out, where that code fails.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
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
from vitdense.models.hiera.sizes import HIERA, HieraArch

LayerNorm = partial(blocks.LayerNorm, eps=1e-6)


@dataclass(frozen=True)
class BlockSpec:
    """One block."""

    stage: int  # counted from 0
    dim: int  # channels of its input
    dim_out: int  # channels of its output
    num_heads: int  # attention heads
    pools: bool  # whether the map is halved
    window: int | None  # side in tokens of its input; None attends globally
    drop_path: float  # stochastic depth


def plan(arch: HieraArch, drop_path_rate: float) -> list[BlockSpec]:
    """Every block in order. The first block of a stage has the windows of the stage before, and pools its queries."""
    specs: list[BlockSpec] = []
    rates = drop_path_rates(drop_path_rate, sum(arch.depths))
    for stage, depth in enumerate(arch.depths):
        for i in range(depth):
            number, pools = len(specs), stage > 0 and i == 0
            dim, heads = (width * 2**stage for width in (arch.embed_dims, arch.num_heads))
            window = None if number in arch.global_indices else arch.window_sizes[stage - pools]
            specs.append(BlockSpec(stage, dim // 2 if pools else dim, dim, heads, pools, window, rates[number]))
    return specs


class WindowPosition(nn.Module):
    """Position embedding of a map, resized to it bicubically, and one of a window, repeated from the top left (Bolya et
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
    """Self-attention in windows of queries, which may be max-pooled, and keys and values, which are not."""

    def __init__(self, spec: BlockSpec) -> None:
        super().__init__()
        self.spec = spec
        self.qkv = nn.Linear(spec.dim, 3 * spec.dim_out)
        self.proj = nn.Linear(spec.dim_out, spec.dim_out)

    def forward(self, x: Tensor) -> Tensor:
        """Normalised map ``[B, H, W, dim]`` to ``[B, H, W, dim_out]``, of half the sides rounded up if it pools."""
        side = self.spec.window
        windows = window_layout(x, side and (side, side))
        q, k, v = self.qkv(windows.partition(x)).chunk(3, dim=-1)  # [B*nW, N, C] each
        if self.spec.pools:
            pooled = pool_map(windows.unpartition(q))  # [B, h, w, C]
            windows = window_layout(pooled, side and (side // 2, side // 2))
            q = windows.partition(pooled)  # [B*nW, N/4, C]
        heads = (x.unflatten(-1, (self.spec.num_heads, -1)).transpose(1, 2) for x in (q, k, v))  # [B*nW, heads, N, d]
        y = attend(*heads).transpose(1, 2).flatten(2)  # [B*nW, N, C]
        return self.proj(windows.unpartition(y))


def pool_map(x: Tensor) -> Tensor:
    """Max pooling: ``[B, H, W, C]`` to ``[B, ceil(H/2), ceil(W/2), C]``."""
    return max_pool(x.permute(0, 3, 1, 2), 2, 2).permute(0, 2, 3, 1)  # [B, h, w, C]


class HieraBlock(nn.Module):
    """Attention and MLP, each on a normalised branch; where the map is halved, the skip is projected and pooled."""

    def __init__(self, spec: BlockSpec, mlp_ratio: float) -> None:
        super().__init__()
        self.spec = spec
        self.norm1 = LayerNorm(spec.dim)
        self.attn = PooledQueryAttention(spec)
        self.norm2 = LayerNorm(spec.dim_out)
        self.mlp = Mlp(spec.dim_out, int(spec.dim_out * mlp_ratio))
        self.proj = nn.Linear(spec.dim, spec.dim_out) if spec.pools else None
        self.drop_path = DropPath(spec.drop_path) if spec.drop_path else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """``[B, H, W, dim]`` to ``[B, H, W, dim_out]``, of half the sides rounded up if it pools."""
        y = self.norm1(x)
        x = pool_map(self.proj(y)) if self.spec.pools else x  # [B, h, w, dim_out]
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
        specs = plan(row, drop_path_rate)
        self.patch_embed = OverlapPatchEmbed(self.in_channels, row.embed_dims)
        self.absolute_pos_embed = WindowPosition(row.position_grid, row.window_sizes[0], row.embed_dims)
        self.stages = nn.ModuleList(
            Stage((HieraBlock(spec, mlp_ratio) for spec in specs if spec.stage == i), with_cp=self.with_cp)
            for i in range(len(row.depths))
        )
        self.apply(init_transformer)
        dims = [stage.blocks[-1].spec.dim_out for stage in self.stages]
        self.build_outputs_and_freeze(dims, [4 * 2**i for i in range(len(dims))], norm=LayerNorm)
