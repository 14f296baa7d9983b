"""Swin Transformer (Liu et al., ICCV 2021) as a backbone for dense prediction.

As in the authors' detection code, maps are padded after the norm and before the roll, padded keys stay visible, and
shifted blocks shift even if the map is a single window. `classifier_windows` is for their classification code.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from vitdense.families import find_arch
from vitdense.layers.attention import attend_windows
from vitdense.layers.bias import TableBias
from vitdense.layers.blocks import (
    DropPath,
    LayerNorm,
    Mlp,
    PatchEmbed,
    PatchMerging,
    add_layer_scale,
    init_transformer,
    scaled,
)
from vitdense.layers.layout import Windows, compute_dtype, window_layout
from vitdense.layers.position import AbsolutePosition
from vitdense.models.base import Backbone, Stage, as_pair, drop_path_rates
from vitdense.models.swin.sizes import SWIN, SwinArch


@dataclass(frozen=True)
class BlockSpec:
    """One block. Window and shift are (h, w) in tokens."""

    stage: int
    dim: int
    num_heads: int
    window: tuple[int, int]
    shift: tuple[int, int]
    drop_path: float


def plan(
    arch: SwinArch,
    window: tuple[int, int],
    drop_path_rate: float,
    shift: bool = True,
    grid: tuple[int, int] | None = None,
) -> list[BlockSpec]:
    """Every block of a Swin in order.

    Odd blocks of a stage shift by half a window (section 3.2); drop path grows linearly from 0 to
    `drop_path_rate` over all blocks. With the `grid` (h, w) of patches in pretraining, a window is at most the stage's
    map in pretraining, and does not shift along an axis if it is the whole map.
    """
    blocks = [(stage, i) for stage, depth in enumerate(arch.depths) for i in range(depth)]
    maps = [tuple(side >> stage for side in grid) if grid else (math.inf,) * 2 for stage in range(len(arch.depths))]
    return [
        BlockSpec(
            stage=stage,
            dim=arch.embed_dims * 2**stage,
            num_heads=arch.num_heads[stage],
            window=tuple(map(min, window, maps[stage])),
            shift=tuple(w // 2 if shift and i % 2 and w < side else 0 for w, side in zip(window, maps[stage])),
            drop_path=rate,
        )
        for (stage, i), rate in zip(blocks, drop_path_rates(drop_path_rate, len(blocks)))
    ]


class WindowAttention(nn.Module):
    """Multi-head self-attention inside windows (section 3.2)."""

    attends_over = "BNC"

    def __init__(self, spec: BlockSpec, qkv_bias: bool, relative_bias: bool) -> None:
        super().__init__()
        self.spec = spec
        self.qkv = nn.Linear(spec.dim, 3 * spec.dim, bias=qkv_bias)
        self.bias = TableBias(spec.window, spec.num_heads) if relative_bias else None
        self.proj = nn.Linear(spec.dim, spec.dim)

    def forward(self, x: Tensor, windows: Windows) -> Tensor:
        """Windows ``[B*nW, N, C]`` to the same; `windows` has their masks."""
        return self.proj(self.attend(x, windows))  # [B*nW, N, C]

    def attend(self, x: Tensor, windows: Windows) -> Tensor:
        """Attention without the projection, ``[B*nW, N, C]`` to the same."""
        qkv = self.qkv(x).unflatten(-1, (3, self.spec.num_heads, -1))  # [B*nW, N, 3, heads, d]
        return attend_windows(qkv, self.bias and self.bias(x.dtype), windows)  # [B*nW, N, C]


class SwinBlock(nn.Module):
    """Windowed attention and MLP, each on a normalised branch (equation 3), optionally with LayerScale.

    A subclass that mixes tokens in another way overrides `mix`, and `layout` if it has no windows.
    """

    norm = LayerNorm
    mixer = "attn"  # name of the token-mixing layer in checkpoints

    def __init__(self, spec: BlockSpec, attn: nn.Module, mlp_ratio: float, layer_scale: float | None = None) -> None:
        super().__init__()
        self.spec = spec
        self.norm1 = self.norm(spec.dim)
        self.add_module(self.mixer, attn)
        self.norm2 = self.norm(spec.dim)
        self.mlp = Mlp(spec.dim, int(spec.dim * mlp_ratio))
        add_layer_scale(self, spec.dim, layer_scale)
        self.drop_path = DropPath(spec.drop_path) if spec.drop_path else nn.Identity()

    def layout(self, x: Tensor) -> Windows:
        return window_layout(x, self.spec.window, self.spec.shift)

    def forward(self, x: Tensor, windows: Windows) -> Tensor:
        """``[B, H, W, C]`` to the same, in the `windows` of `layout`."""
        x = x + self.drop_path(scaled(self.mix(self.norm1(x), windows), self.gamma_1))
        return x + self.drop_path(scaled(self.mlp(self.norm2(x)), self.gamma_2))

    def mix(self, x: Tensor, windows: Windows) -> Tensor:
        """Attention within the windows of a normalised map ``[B, H, W, C]``, to the same."""
        # Padding comes before qkv, so keys and values of padding are the bias, and other tokens see them.
        x = windows.partition(x.to(compute_dtype(x)))  # [B*nW, N, C], cast before it is copied
        return windows.unpartition(self.attn(x, windows))  # [B, H, W, C]


class SwinStage(Stage):
    """A stage whose blocks share the windows of its map, and their masks."""

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, H, W, C]`` after the blocks, before merging."""
        layouts: dict[tuple, Any] = {}
        for block in self.blocks:
            kind = block.spec.window, block.spec.shift
            if kind not in layouts:
                layouts[kind] = block.layout(x)
            x = self.run(block, x, layouts[kind])
        return x


class SwinTrunk(Backbone):
    """The base of Swin, Swin V2 and variants: patch embedding, stages of blocks and patch merging, output norms.

    A subclass sets `arch`, then calls `build`.
    """

    def build(
        self,
        specs: Sequence[BlockSpec],
        stem: Callable[[int, int], nn.Module],
        block: Callable[[BlockSpec], SwinBlock],
        merging: Callable[[int], nn.Module],
        patch_size: int = 4,
        position_grid: tuple[int, int] | None = None,
    ) -> None:
        """Build the modules, and freeze.

        Args:
            stem, merging: Builds the patch embedding from image channels and its own, and a patch merging from its own.
            patch_size: Stride of the patch embedding in pixels.
            position_grid: Grid (h, w) of an absolute position embedding in tokens; None for none.
        """
        dims = [self.arch.embed_dims * 2**i for i in range(len(self.arch.depths))]
        self.patch_embed = stem(self.in_channels, dims[0])
        self.absolute_pos_embed = AbsolutePosition(position_grid, dims[0]) if position_grid else nn.Identity()
        self.stages = nn.ModuleList(
            SwinStage(
                [block(spec) for spec in specs if spec.stage == i],
                merging(dim) if i + 1 < len(dims) else None,
                self.with_cp,
            )
            for i, dim in enumerate(dims)
        )
        self.apply(init_transformer)
        self.build_outputs_and_freeze(dims, [patch_size * 2**i for i in range(len(dims))])


def pretraining_grid(wanted: bool, image: int | Sequence[int], patch_size: int) -> tuple[int, int] | None:
    """The grid (h, w) of patches in pretraining, from its image size in pixels; None if not `wanted`."""
    h, w = as_pair(image, "pretrain_img_size")
    return (h // patch_size, w // patch_size) if wanted else None


class Swin(SwinTrunk):
    """Swin Transformer V1: four maps of strides 4, 8, 16 and 32 from an image of any size.

    Output i has ``embed_dims * 2**i`` channels; its sizes are H/4, then half per stage, rounded up. Each output has its
    own LayerNorm; the next stage receives the map before that norm. Arguments not listed here: see `Backbone`.

    Args:
        arch: ``'tiny'``, ``'small'``, ``'base'``, ``'large'``, or a dict of `embed_dims`, `depths`, `num_heads`.
        patch_size: Patch side and stride in pixels.
        window_size: Window in tokens, one int or (h, w). Published weights use 7, or 12 when trained at 384 pixels.
        qkv_bias: Whether queries, keys and values have a bias.
        shift: Whether odd blocks shift their windows (off: Table 4's ablation).
        relative_bias: Whether attention has a relative position bias (off: Table 4's ablation).
        absolute_position: Whether to add an absolute position embedding (on: Table 4's ablation).
        classifier_windows: Whether windows are as in timm and the authors' classifiers at `pretrain_img_size`: if the
            map of a stage there is at most a window, the window is this map and does not shift.
        pretrain_img_size: Image size of pretraining in pixels, one int or (h, w), for the absolute position embedding.
    """

    family = "swin"
    block: type[SwinBlock] = SwinBlock
    attention: type[nn.Module] = WindowAttention  # of a block, from its spec, `qkv_bias` and `relative_bias`

    def __init__(
        self,
        arch: str | Mapping = "tiny",
        *,
        patch_size: int = 4,
        window_size: int | Sequence[int] = 7,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        drop_path_rate: float = 0.2,
        shift: bool = True,
        relative_bias: bool = True,
        absolute_position: bool = False,
        classifier_windows: bool = False,
        pretrain_img_size: int | Sequence[int] = 224,
        **common: Any,
    ) -> None:
        super().__init__(drop_path_rate=drop_path_rate, **common)
        self.arch = find_arch(arch, SWIN)
        grid = pretraining_grid(classifier_windows, pretrain_img_size, patch_size)
        self.build(
            plan(self.arch, as_pair(window_size, "window_size"), drop_path_rate, shift, grid),
            stem=partial(PatchEmbed, patch_size=patch_size),
            block=lambda spec: self.block(spec, self.attention(spec, qkv_bias, relative_bias), mlp_ratio),
            merging=PatchMerging,
            patch_size=patch_size,
            position_grid=pretraining_grid(absolute_position, pretrain_img_size, patch_size),
        )
