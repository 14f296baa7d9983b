"""Swin-Mixer (Liu et al., ICCV 2021, Table 6) as a backbone for dense prediction: a Swin without attention.

The authors published code for classification at one image size only. Their rules for Swin's dense code apply: maps are
padded after the norm, windows never shrink to a small map, and odd blocks shift even where the map is a single window.
(Classification code shrinks windows and does not shift there, as in the last stage at the size of pretraining.)
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.init import trunc_normal_

from vitdense.families import find_arch
from vitdense.layers.blocks import PatchEmbed, PatchMerging
from vitdense.layers.layout import compute_dtype, copied, window_layout
from vitdense.models.base import as_pair
from vitdense.models.swin.model import BlockSpec, SwinBlock, SwinTrunk, plan
from vitdense.research.swin_mixer.sizes import SWIN_MIXER


class WindowLinear(nn.Module):
    """A linear layer over the tokens of a window, one per head, applied to each of the head's channels (Table 6).

    A shift needs no roll and no mask: zeros left of and above the map move the grid of windows, and are cut off
    again. It costs one more window along each axis.
    """

    def __init__(self, spec: BlockSpec) -> None:
        super().__init__()
        self.window = spec.window
        # Outputs, then inputs, with two axes each, so that the weight can be resized to another window.
        self.weight = nn.Parameter(torch.empty(spec.num_heads, *spec.window, *spec.window))
        self.bias = nn.Parameter(torch.zeros(spec.num_heads, *spec.window))
        trunc_normal_(self.weight, std=0.02)
        self.top, self.left = (side - by if by else 0 for side, by in zip(spec.window, spec.shift))

    def forward(self, x: Tensor) -> Tensor:
        """``[B, H, W, C]`` to the same. Maps are padded with zeros right and bottom to whole windows."""
        x = x.to(compute_dtype(x))
        if self.top or self.left:
            x = F.pad(x, (0, 0, self.left, 0, self.top, 0))  # [B, top + H, left + W, C]
        windows = window_layout(x, self.window)
        heads = self.weight.shape[0]
        x = windows.partition(x)  # [B*nW, N, C]
        n, tokens, dim = x.shape
        x = copied(x.view(n, tokens, heads, dim // heads).permute(2, 1, 0, 3))  # [heads, N, B*nW, d]
        weight = self.weight.flatten(3).flatten(1, 2).to(x.dtype)  # [heads, N, N]
        bias = self.bias.flatten(1)[..., None].to(x.dtype)  # [heads, N, 1]
        y = torch.baddbmm(bias, weight, x.flatten(2)).view(x.shape)  # [heads, N, B*nW, d]
        y = windows.unpartition(copied(y.permute(2, 1, 0, 3)).view(n, tokens, dim))  # [B, top + H, left + W, C]
        return y[:, self.top :, self.left :]  # [B, H, W, C]


class SwinMixerBlock(SwinBlock):
    """A Swin block with `WindowLinear` in place of attention. Parameters have the authors' names."""

    mixer = "spatial_mlp"

    def layout(self, x: Tensor) -> None:
        """None: the layer itself partitions the map."""

    def mix(self, x: Tensor, windows: None) -> Tensor:
        return self.spatial_mlp(x)


class SwinMixer(SwinTrunk):
    """Swin-Mixer: four maps of strides 4, 8, 16 and 32 from an image of any size.

    Outputs are as of `Swin`. Parameters fit any image; parameters of another window are resized when they are loaded,
    by a rule of ours. Arguments not listed here: see `Backbone`.

    Args:
        arch: ``'tiny_d24'``, ``'tiny_d12'``, ``'tiny_d6'``, ``'base'``, or a dict of `embed_dims`, `depths`,
            `num_heads`.
        patch_size: Patch side and stride in pixels.
        window_size: Window in tokens, one int or (h, w). Published weights use 8; base uses 7.
        shift: Whether odd blocks shift their windows (off: Table 6's ablation).
    """

    family = "swin_mixer"

    def __init__(
        self,
        arch: str | Mapping = "tiny_d24",
        *,
        patch_size: int = 4,
        window_size: int | Sequence[int] = 8,
        mlp_ratio: float = 4.0,
        drop_path_rate: float = 0.2,
        shift: bool = True,
        **common: Any,
    ) -> None:
        super().__init__(drop_path_rate=drop_path_rate, **common)
        self.arch = find_arch(arch, SWIN_MIXER)
        self.build(
            plan(self.arch, as_pair(window_size, "window_size"), drop_path_rate, shift),
            stem=partial(PatchEmbed, patch_size=patch_size),
            block=lambda spec: SwinMixerBlock(spec, WindowLinear(spec), mlp_ratio),
            merging=PatchMerging,
            patch_size=patch_size,
        )
