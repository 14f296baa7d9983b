"""Swin Transformer V2 (Liu et al., CVPR 2022) as a backbone for dense prediction.

The authors published no dense code for V2, so their rules for V1 apply: maps are padded before queries, keys and values
are computed, padded keys stay visible, windows never shrink to a small map, and odd blocks shift even if the map is a
single window. `classifier_windows` is for classification code, which shrinks windows and does not shift there.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitdense.errors import OptionError
from vitdense.families import find_arch
from vitdense.layers.attention import attend_windows, unit_length
from vitdense.layers.bias import LogCpbBias
from vitdense.layers.blocks import PatchEmbed, PostNormMerging, ResidualLayerNorm
from vitdense.layers.layout import Windows, zero
from vitdense.models.base import as_pair
from vitdense.models.swin.model import BlockSpec, SwinBlock, SwinTrunk, WindowAttention, pretraining_grid
from vitdense.models.swin.model import plan as plan_v1
from vitdense.models.swin_v2.sizes import SWIN_V2, SwinV2Arch


@dataclass(frozen=True)
class BlockSpecV2(BlockSpec):
    """One block of V2."""

    pretrained_window: tuple[int, int]  # window (h, w) in tokens that the weights were trained with
    extra_norm: bool  # whether a third norm ends the block


def plan(
    arch: SwinV2Arch,
    window: tuple[int, int],
    pretrained_windows: Sequence[tuple[int, int]],
    drop_path_rate: float,
    grid: tuple[int, int] | None = None,
) -> list[BlockSpecV2]:
    """Every block of a Swin V2 in order; for `grid` see Swin's `plan`.

    Every `arch.extra_norm_every`-th block of a stage ends with an extra norm (section 3.6).
    """
    every = arch.extra_norm_every
    index_in_stage = [i for depth in arch.depths for i in range(depth)]  # of every block
    return [
        BlockSpecV2(
            **vars(spec),
            pretrained_window=pretrained_windows[spec.stage],
            extra_norm=every > 0 and (i + 1) % every == 0,
        )
        for spec, i in zip(plan_v1(arch, window, drop_path_rate, grid=grid), index_in_stage, strict=True)
    ]


def windows_by_stage(
    sizes: int | Sequence[int | Sequence[int]] | None, window: tuple[int, int], num_stages: int
) -> list[tuple[int, int]]:
    """The pretraining window (h, w) of every stage, from one for all, one for each, or None."""
    name = "pretrained_window_sizes"
    if sizes is None:
        return [window] * num_stages
    if isinstance(sizes, int):
        sizes = [sizes] * num_stages
    if not isinstance(sizes, Sequence) or isinstance(sizes, str) or len(sizes) != num_stages:
        raise OptionError(
            f"{name}: got {sizes!r}, expected None (as window_size), an int, or one int or (h, w) for each of the "
            f"{num_stages} stages"
        )
    # 0 is the window itself, as in the authors' configs.
    return [window if size == 0 else as_pair(size, f"{name}[{stage}]") for stage, size in enumerate(sizes)]


class LinearWithBias(nn.Linear):
    """A linear layer with the bias as an argument.

    Adding the bias afterwards is one more pass over the largest map: Swin V2-T at 384x384 took 1.06x the time on a CPU.
    """

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """``[..., C]`` and ``[C']`` to ``[..., C']``."""
        return F.linear(x, self.weight, bias)  # [..., C']


class CosineWindowAttention(WindowAttention):
    """Scaled cosine attention in windows (section 3.3, equation 2), with a continuous position bias."""

    def __init__(self, spec: BlockSpecV2) -> None:
        super().__init__(spec, qkv_bias=False, relative_bias=False)
        self.qkv = LinearWithBias(spec.dim, 3 * spec.dim, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(spec.dim))
        self.v_bias = nn.Parameter(torch.zeros(spec.dim))
        self.logit_scale = nn.Parameter(torch.full((spec.num_heads, 1, 1), math.log(10)))
        self.bias = LogCpbBias(spec.window, spec.num_heads, spec.pretrained_window)

    def attend(self, x: Tensor, windows: Windows) -> Tensor:
        dim, heads, none = self.spec.dim, self.spec.num_heads, zero(self.q_bias)
        # Keys have no bias, and their log scale is 0, so one kernel joins all.
        parts = [self.q_bias, none.expand(dim), self.v_bias, self.logit_scale.flatten(), none.expand(heads)]
        joined = torch.cat(parts)  # [3*C + 2*heads]
        qkv_bias, scale = joined[: 3 * dim], joined[3 * dim :]  # exporters fold slices, but not a split
        dtype = torch.promote_types(scale.dtype, torch.float32)
        scale = scale.to(dtype).clamp_max(math.log(100)).exp().view(2, heads)
        qkv = unit_length(self.qkv(x.flatten(0, 1), qkv_bias), scale)  # [B*nW*N, 3*C]
        qkv = qkv.view(*x.shape[:2], 3, heads, dim // heads)  # [B*nW, N, 3, heads, d]
        return attend_windows(qkv, self.bias(x.dtype), windows, 1.0)  # [B*nW, N, C]


class PostNormBlock(SwinBlock):
    """Windowed attention and MLP, each normalised before it is added (section 3.2, "Post normalization").

    Both norms start at zero, so that a new block is the identity.
    """

    norm = ResidualLayerNorm  # results are added to the map, which stays in float32 under autocast

    def __init__(self, spec: BlockSpecV2, attn: CosineWindowAttention, mlp_ratio: float) -> None:
        super().__init__(spec, attn, mlp_ratio)
        for parameter in (*self.norm1.parameters(), *self.norm2.parameters()):
            nn.init.zeros_(parameter)
        self.norm3 = ResidualLayerNorm(spec.dim) if spec.extra_norm else nn.Identity()

    def forward(self, x: Tensor, windows: Windows) -> Tensor:
        """``[B, H, W, C]`` to the same, in the `windows` of `layout`."""
        x = x + self.drop_path(self.norm1(self.mix(x, windows)))
        return self.norm3(x + self.drop_path(self.norm2(self.mlp(x))))


class SwinV2(SwinTrunk):
    """Swin Transformer V2: four maps of strides 4, 8, 16 and 32 from an image of any size.

    For outputs see `Swin`. Arguments not listed here: see `Backbone`.

    Args:
        arch: ``'tiny'``, ``'small'``, ``'base'``, ``'large'``, ``'huge'``, ``'giant'``, or a dict of `embed_dims`,
            `depths`, `num_heads` and, if wanted, `extra_norm_every`.
        patch_size: Patch side and stride in pixels.
        window_size: Window in tokens, one int or (h, w). Published weights use 8, 16 or 24.
        pretrained_window_sizes: Windows in tokens that the weights were trained with: None for `window_size`, one
            int, or an int or (h, w) per stage; 0 is `window_size`. If a stage's map in pretraining was smaller than the
            window, its window was the map: (16, 16, 16, 8) for weights of window 16 trained at 256 pixels.
        absolute_position: Whether to add an absolute position embedding.
        classifier_windows: See `Swin`.
        pretrain_img_size: Image size of pretraining in pixels, one int or (h, w), for the absolute position embedding.
    """

    family = "swin_v2"

    def __init__(
        self,
        arch: str | Mapping = "tiny",
        *,
        patch_size: int = 4,
        window_size: int | Sequence[int] = 8,
        pretrained_window_sizes: int | Sequence[int | Sequence[int]] | None = None,
        mlp_ratio: float = 4.0,
        drop_path_rate: float = 0.2,
        absolute_position: bool = False,
        classifier_windows: bool = False,
        pretrain_img_size: int | Sequence[int] = 256,
        **common: Any,
    ) -> None:
        super().__init__(drop_path_rate=drop_path_rate, **common)
        self.arch = find_arch(arch, SWIN_V2)
        window = as_pair(window_size, "window_size")
        trained = windows_by_stage(pretrained_window_sizes, window, len(self.arch.depths))
        grid = pretraining_grid(classifier_windows, pretrain_img_size, patch_size)
        self.build(
            plan(self.arch, window, trained, drop_path_rate, grid),
            stem=partial(PatchEmbed, patch_size=patch_size),
            block=lambda spec: PostNormBlock(spec, CosineWindowAttention(spec), mlp_ratio),
            merging=PostNormMerging,
            patch_size=patch_size,
            position_grid=pretraining_grid(absolute_position, pretrain_img_size, patch_size),
        )
