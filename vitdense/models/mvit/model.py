"""MViTv2 (Li et al., CVPR 2022) with hybrid window attention, and MViT v1 (Fan et al., ICCV 2021), for dense work.

Follows the authors' detection code: windows are cut after pooling and norm, so that the pooling sees across window
borders; padded keys are zero and visible; the class token of classifiers is ignored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitdense.errors import OptionError, check_choice
from vitdense.families import find_arch
from vitdense.layers import blocks
from vitdense.layers.attention import attend, attend_decomposed
from vitdense.layers.bias import DecomposedBias
from vitdense.layers.blocks import DropPath, Mlp, OverlapPatchEmbed, init_transformer, max_pool
from vitdense.layers.layout import window_layout
from vitdense.layers.position import AbsolutePosition
from vitdense.models.base import Backbone, Stage, as_pair, drop_path_rates
from vitdense.models.mvit.sizes import MVIT, MViTArch

LayerNorm = partial(blocks.LayerNorm, eps=1e-6)
WINDOWS = ("hybrid", "global", "window")
KV_STRIDE = 4  # of the first stage; half of it per stage (section 4.1)


@dataclass(frozen=True)
class BlockSpec:
    """One block. Grid and window are (h, w) in tokens of its input."""

    stage: int  # counted from 0
    dim: int  # channels of its input
    dim_attn: int  # channels of its attention
    dim_out: int  # channels of its output
    num_heads: int  # attention heads
    grid: tuple[int, int]  # its input in pretraining
    q_stride: int  # of the pooling of queries: the map shrinks by it
    kv_stride: int  # of the pooling of keys and values
    window: tuple[int, int] | None  # None attends globally
    drop_path: float  # stochastic depth


def plan(arch: MViTArch, window: str, grid: tuple[int, int], drop_path_rate: float) -> list[BlockSpec]:
    """Every block of an MViT in order, for one of `WINDOWS` and the pretraining grid (h, w) after the patch embedding
    in tokens.

    With hybrid windows the last block of every stage but the first is global, and pools its keys and values twice as
    far, except in the last stage (section 3.3 and the authors' detection code). A window is the pretraining grid of the
    block's input, so that it is smaller after a stage's first block.
    """
    last = len(arch.depths) - 1
    specs = []
    rates = iter(drop_path_rates(drop_path_rate, sum(arch.depths)))
    kv_stride, dim = KV_STRIDE, arch.embed_dims
    for stage, depth in enumerate(arch.depths):
        width = arch.embed_dims * 2**stage
        for i in range(depth):
            shrinks = stage > 0 and i == 0
            if shrinks:
                kv_stride = max(kv_stride // 2, 1)
            is_global = window == "global" or (window == "hybrid" and stage > 0 and i == depth - 1)
            doubles = window == "hybrid" and is_global and stage < last
            grows_after = arch.growth == "mlp" and i == depth - 1 and stage < last
            specs.append(
                BlockSpec(
                    stage=stage,
                    dim=dim,
                    dim_attn=width,
                    dim_out=2 * width if grows_after else width,
                    num_heads=arch.num_heads * 2**stage,
                    grid=grid,
                    q_stride=2 if shrinks else 1,
                    kv_stride=kv_stride * 2 if doubles else kv_stride,
                    window=None if is_global else grid,
                    drop_path=next(rates),
                )
            )
            dim = specs[-1].dim_out
            if shrinks:
                grid = (grid[0] // 2, grid[1] // 2)
    return specs


class PooledAttention(nn.Module):
    """Self-attention between pooled queries and pooled keys and values (section 3.2, "Pooling Attention")."""

    attends_over = "BHWC"

    def __init__(self, spec: BlockSpec, arch: MViTArch) -> None:
        super().__init__()
        self.spec = spec
        self.residual = arch.residual_pooling
        dim = spec.dim_attn // spec.num_heads
        self.qkv = nn.Linear(spec.dim, 3 * spec.dim_attn)
        self.proj = nn.Linear(spec.dim_attn, spec.dim_attn)
        if arch.pool == "conv":
            for name in "qkv" if arch.pool_all_queries or spec.q_stride > 1 else "kv":
                self.add_module(f"pool_{name}", nn.Conv2d(dim, dim, 3, padding=1, groups=dim, bias=False))
                self.add_module(f"norm_{name}", LayerNorm(dim))
        finer = min(spec.q_stride, spec.kv_stride)
        tables = tuple(side // finer for side in spec.grid)
        self.bias = DecomposedBias(tables, dim) if arch.relative_position else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalised map ``[B, H, W, C]`` to ``[B, ceil(H / q_stride), ceil(W / q_stride), dim_attn]``."""
        q, k, v = self.pool(*self.qkv(x).chunk(3, dim=-1))  # [B, h, w, C'] each
        y = self.attend_windows(q, k, v)  # [B, h, w, C']
        return self.proj(y + q if self.residual else y)  # [B, h, w, C']

    def pool(self, *maps: Tensor) -> list[Tensor]:
        """Pool queries, keys and values: ``[B, H, W, C']`` to ``[B, ceil(H/s), ceil(W/s), C']`` each.

        Pooling by convolutions is followed by a norm per head.
        """
        heads = self.spec.num_heads
        strides = (self.spec.q_stride, self.spec.kv_stride, self.spec.kv_stride)
        kernels = {name: getattr(self, f"pool_{name}").weight for name in "qkv" if hasattr(self, f"pool_{name}")}
        if kernels:
            # All heads share weights. Calling the layers would need heads in the batch axis, and so copies of the maps.
            of_heads = torch.stack([*kernels.values()])[:, None].expand(-1, heads, -1, -1, -1, -1)
            kernels = dict(zip(kernels, of_heads.flatten(1, 2).unbind()))  # [C', 1, 3, 3] each
        out = []
        for name, x, stride in zip("qkv", maps, strides):
            if name not in kernels:
                out.append(pool_map(x, stride))  # [B, h, w, C']
                continue
            channels = x.shape[3]
            x = F.conv2d(x.permute(0, 3, 1, 2), kernels[name], None, stride, 1, groups=channels)  # [B, C', h, w]
            x = x.permute(0, 2, 3, 1).unflatten(-1, (heads, -1))  # [B, h, w, heads, d]
            out.append(getattr(self, f"norm_{name}")(x).flatten(-2))  # [B, h, w, C']
        return out

    def attend_windows(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Maps ``[B, h, w, C']`` and twice ``[B, h', w', C']`` to ``[B, h, w, C']``, within windows if there are any.

        Windows are cut only here, so that pooling sees across their borders.
        """
        window, strides = self.spec.window, (self.spec.q_stride, self.spec.kv_stride)
        sides = (window and tuple(side // s for side in window) for s in strides)
        windows_q, windows_kv = map(window_layout, (q, k), sides)
        # Padding is zero after the norm: a padded key has the logit of its position alone, and a zero value.
        q = windows_q.partition(q)  # [B*nW, N, C']
        k, v = windows_kv.partition(k), windows_kv.partition(v)  # [B*nW, N', C'] each
        return windows_q.unpartition(self.attend(q, k, v, windows_q.window, windows_kv.window))  # [B, h, w, C']

    def attend(self, q: Tensor, k: Tensor, v: Tensor, of_q: tuple[int, int], of_kv: tuple[int, int]) -> Tensor:
        """Tokens ``[B, N, C']`` of grids `of_q` and `of_kv`, row-major, to ``[B, N, C']``."""
        heads = [x.unflatten(-1, (self.spec.num_heads, -1)) for x in (q, k, v)]  # [B, N, heads, d] each
        if self.bias is None:
            y = attend(*(x.transpose(1, 2) for x in heads))  # [B, heads, N, d]
            return y.transpose(1, 2).flatten(2)  # [B, N, C']
        heads[0] = heads[0].unflatten(1, of_q)  # [B, h, w, heads, d]
        return attend_decomposed(*heads, self.bias, of_kv)  # [B, N, C']


def pool_map(x: Tensor, stride: int) -> Tensor:
    """Overlapping max pooling of a map: ``[B, H, W, C]`` to ``[B, ceil(H / stride), ceil(W / stride), C]``."""
    if stride == 1:
        return x
    y = max_pool(x.permute(0, 3, 1, 2), stride + 1, stride, padding=stride // 2)  # [B, C, h, w]
    return y.permute(0, 2, 3, 1)  # [B, h, w, C]


class MViTBlock(nn.Module):
    """Pooled attention and MLP, each on a normalised branch; one of them may change the width (section 3.2)."""

    def __init__(self, spec: BlockSpec, arch: MViTArch, mlp_ratio: float) -> None:
        super().__init__()
        self.spec = spec
        self.norm1 = LayerNorm(spec.dim)
        self.attn = PooledAttention(spec, arch)
        self.norm2 = LayerNorm(spec.dim_attn)
        self.mlp = Mlp(spec.dim_attn, int(spec.dim_attn * mlp_ratio), spec.dim_out)
        # For the skip connection of the branch that changes the width.
        self.proj = nn.Linear(spec.dim, spec.dim_out) if spec.dim != spec.dim_out else None
        self.drop_path = DropPath(spec.drop_path) if spec.drop_path else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """``[B, H, W, dim]`` to ``[B, ceil(H / q_stride), ceil(W / q_stride), dim_out]``."""
        spec = self.spec
        y = self.norm1(x)
        x = pool_map(self.proj(y) if spec.dim != spec.dim_attn else x, spec.q_stride)  # [B, h, w, dim_attn]
        x = x + self.drop_path(self.attn(y))  # [B, h, w, dim_attn]
        y = self.norm2(x)
        skip = self.proj(y) if spec.dim_attn != spec.dim_out else x  # [B, h, w, dim_out]
        return skip + self.drop_path(self.mlp(y))  # [B, h, w, dim_out]


class MViT(Backbone):
    """MViTv2 or MViT v1: four maps of strides 4, 8, 16 and 32 from an image of any size.

    Each output has its own LayerNorm; the next stage receives the map before that norm. With growth in attention output
    i has ``embed_dims * 2**i`` channels; with growth in the MLP (`v2_large_in1k`, v1) the last block of a
    stage already has the channels of the next. Arguments not listed here: see `Backbone`.

    Args:
        arch: ``'v2_tiny'``, ``'v2_small'``, ``'v2_base'``, ``'v2_large'`` (as for ImageNet-21K and for detection),
            ``'v2_large_in1k'`` (growth in the MLP), ``'v2_huge'``, ``'v1_base'``, ``'v1_base_max'`` (max
            pooling), or a dict of the fields of `MViTArch`.
        window: ``'hybrid'`` (section 3.3), ``'global'`` as in classification, or ``'window'`` for windows alone.
        pretrain_img_size: Image size in pixels, one int or (h, w), of pretraining: its grid is the window, and the
            size of the position tables.
    """

    family = "mvit"

    def __init__(
        self,
        arch: str | Mapping = "v2_tiny",
        *,
        window: str = "hybrid",
        mlp_ratio: float = 4.0,
        drop_path_rate: float = 0.2,
        pretrain_img_size: int | Sequence[int] = 224,
        **common: Any,
    ) -> None:
        super().__init__(drop_path_rate=drop_path_rate, **common)
        row = self.arch = find_arch(arch, MVIT)
        check_choice("window", window, WINDOWS)
        image = as_pair(pretrain_img_size, "pretrain_img_size")
        # Every window must be a multiple of the stride of key pooling, also in the first stage.
        total = 4 * max(KV_STRIDE, 2 ** (len(row.depths) - 1))
        if any(side % total for side in image):
            raise OptionError(f"pretrain_img_size: got {image}, expected multiples of {total}, for windows pool evenly")
        grid = (image[0] // 4, image[1] // 4)
        specs = plan(row, window, grid, drop_path_rate)
        self.patch_embed = OverlapPatchEmbed(self.in_channels, row.embed_dims)
        absolute = row.absolute_position
        self.absolute_pos_embed = AbsolutePosition(grid, row.embed_dims) if absolute else nn.Identity()
        self.stages = nn.ModuleList(
            Stage((MViTBlock(spec, row, mlp_ratio) for spec in specs if spec.stage == i), with_cp=self.with_cp)
            for i in range(len(row.depths))
        )
        self.apply(init_transformer)
        dims = [stage.blocks[-1].spec.dim_out for stage in self.stages]
        self.build_outputs_and_freeze(dims, [4 * 2**i for i in range(len(dims))], norm=LayerNorm)
