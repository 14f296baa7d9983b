"""Neighborhood Attention Transformer (Hassani et al., CVPR 2023) as a backbone for dense prediction.

As in the authors' detection code, a map smaller than the kernel is padded after the norm and before queries, keys and
values are computed, and attention sees the padding.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from vitdense.families import find_arch
from vitdense.layers.blocks import ResidualLayerNorm
from vitdense.models.swin.model import BlockSpec, SwinBlock, SwinTrunk, plan
from vitdense.research.nat.local import LocalAttention, Tiles, num_offsets
from vitdense.research.nat.sizes import NAT as SIZES


class NeighborhoodAttention(LocalAttention):
    """Multi-head self-attention of every position to the square window around it, kept on the map (section 3.1)."""

    def __init__(self, spec: BlockSpec) -> None:
        super().__init__(spec.dim, spec.num_heads, spec.window[0], "clamp")
        self.proj = nn.Linear(spec.dim, spec.dim)

    def forward(self, x: Tensor, tiles: Tiles | None = None) -> Tensor:
        """``[B, H, W, C]`` to the same; for `tiles` see `LocalAttention`."""
        return self.proj(super().forward(x, tiles))


class LocalBlock(SwinBlock):
    """A Swin block with local attention."""

    def layout(self, x: Tensor) -> Tiles:
        """The tiles of a map ``[B, H, W, C]``, shared by blocks with the same window."""
        return self.attn.layout(x)

    def mix(self, x: Tensor, tiles: Tiles) -> Tensor:
        """``[B, H, W, C]`` to the same."""
        return self.attn(x, tiles)  # [B, H, W, C]


class ConvPatchEmbed(nn.Module):
    """Two overlapping convolutions of stride 2, then LayerNorm (section 3.3)."""

    def __init__(self, in_channels: int, dim: int) -> None:
        super().__init__()
        widths = ((in_channels, dim // 2), (dim // 2, dim))
        self.proj = nn.Sequential(*(nn.Conv2d(*width, 3, stride=2, padding=1) for width in widths))
        self.norm = ResidualLayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Image ``[B, 3, H, W]`` to ``[B, ceil(H/4), ceil(W/4), C]``."""
        return self.norm(self.proj(x).permute(0, 2, 3, 1))  # [B, h, w, C]


class ConvMerging(nn.Module):
    """Halve the map and double the channels: an overlapping convolution of stride 2, then LayerNorm (section 3.3)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.reduction = nn.Conv2d(dim, 2 * dim, 3, stride=2, padding=1, bias=False)
        self.norm = ResidualLayerNorm(2 * dim)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, H, W, C]`` to ``[B, ceil(H/2), ceil(W/2), 2 C]``."""
        return self.norm(self.reduction(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1))  # [B, h, w, 2*C]


class NAT(SwinTrunk):
    """Neighborhood Attention Transformer: four maps of strides 4, 8, 16 and 32 from an image of any size.

    Outputs are as of `Swin`. Arguments not listed here: see `Backbone`.

    Args:
        arch: ``'mini'``, ``'tiny'``, ``'small'``, ``'base'``, or a dict of `embed_dims`, `depths`, `num_heads`,
            `mlp_ratio` and, if wanted, `layer_scale`.
        kernel_size: Side of the neighbourhood in tokens, odd. Published weights use 7.

    Raises:
        ValueError: An unknown arch, or an even kernel.
    """

    family = "nat"

    def __init__(
        self, arch: str | Mapping = "tiny", *, kernel_size: int = 7, drop_path_rate: float = 0.2, **common: Any
    ) -> None:
        super().__init__(drop_path_rate=drop_path_rate, **common)
        row = self.arch = find_arch(arch, SIZES)
        num_offsets(kernel_size, "clamp")  # refuses an even kernel
        self.build(
            plan(row, (kernel_size, kernel_size), drop_path_rate, shift=False),
            stem=ConvPatchEmbed,
            block=lambda spec: LocalBlock(spec, NeighborhoodAttention(spec), row.mlp_ratio, row.layer_scale),
            merging=ConvMerging,
        )
