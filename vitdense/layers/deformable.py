"""Multi-scale deformable attention: a query reads a few points of maps, at places that it predicts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitdense.layers.layout import copied, made_once

Grid = tuple[int, int, int]  # height and width of a map in positions, and its stride in pixels


def deform_attend(levels: Sequence[Tensor], locations: Tensor, weights: Tensor) -> Tensor:
    """Weighted bilinear samples (Deformable DETR, Zhu et al., ICLR 2021, equation 3).

    It loops over levels, so that samples of one level exist at a time.

    Args:
        levels: Maps of values, ``[B, h, w, heads, d]`` each.
        locations: Points (x, y) in 0..1 of a map, zero outside, ``[B, Q, heads, levels, points, 2]``.
        weights: Of the points, ``[B, Q, heads, levels, points]``.

    Returns:
        ``[B, Q, heads d]``.
    """
    batch, _, heads, *_ = locations.shape
    grids = (2 * locations - 1).transpose(1, 2).flatten(0, 1)  # [B * heads, Q, levels, points, 2]
    weights = weights.transpose(1, 2).flatten(0, 1)[:, None]  # [B * heads, 1, Q, levels, points]
    total: Tensor | None = None
    for i, level in enumerate(levels):
        pixels = copied(level.permute(0, 3, 4, 1, 2)).flatten(0, 1)  # [B * heads, d, h, w]
        sampled = F.grid_sample(pixels, grids[:, :, i], align_corners=False)  # [B * heads, d, Q, points]
        part = (sampled * weights[:, :, :, i]).sum(-1)  # [B * heads, d, Q]
        total = part if total is None else total + part
    return total.unflatten(0, (batch, heads)).permute(0, 3, 1, 2).flatten(2)  # [B, Q, heads * d]


@dataclass(frozen=True)
class References:
    """Where positions of some maps are in other maps. Both may have sizes that are no multiples of each other.

    Attributes:
        points: Centre (x, y) of every query in 0..1 of every level, ``[Q, 1, levels, 1, 2]``, float32.
        steps: Width and height of a position of every level, in the same unit, ``[levels, 1, 2]``, float32.
        sizes: Levels (h, w).
    """

    points: Tensor
    steps: Tensor
    sizes: tuple[tuple[int, int], ...]


@made_once
def references(
    queries: tuple[Grid, ...], levels: tuple[Grid, ...], device: torch.device, dtype: torch.dtype
) -> References:
    """The places of queries, the positions of some maps row by row, in levels: where they have the same pixel.

    Called with a tensor on the device in front of the arguments. All maps start at the same corner of the image. They
    may cover more than the image: patches and strides round up.
    """
    per_level, steps = [], []
    for h, w, stride in levels:
        points = []
        for query_h, query_w, query_stride in queries:
            y, x = (
                (torch.arange(n, device=device, dtype=torch.float32) + 0.5) * query_stride / (size * stride)
                for n, size in ((query_h, h), (query_w, w))
            )
            points.append(torch.stack([x.expand(query_h, -1), y[:, None].expand(-1, query_w)], dim=-1).flatten(0, 1))
        per_level.append(torch.cat(points))  # [Q, 2]
        one = torch.ones(1, device=device)
        steps.append(torch.stack([one / w, one / h], dim=-1))  # [1, 2]
    points = torch.stack(per_level, dim=1)[:, None, :, None]  # [Q, 1, levels, 1, 2]
    return References(points, torch.stack(steps), tuple((h, w) for h, w, _ in levels))


class DeformableAttention(nn.Module):
    """Multi-scale deformable attention (Deformable DETR, section 4.1), with its initialisation.

    At the start, head i looks into the i-th direction, and point j is j + 1 positions away, whatever the query is.

    Args:
        dim: Channels of queries and values.
        num_heads: Heads; a divisor of `dim` and of its `ratio`.
        num_levels: Maps that are sampled.
        num_points: Points per head and level.
        ratio: Channels of the projected values over `dim`.

    Raises:
        ValueError: The heads do not divide the channels.
    """

    def __init__(self, dim: int, num_heads: int, num_levels: int, num_points: int, ratio: float = 1.0) -> None:
        super().__init__()
        width = int(dim * ratio)
        if num_heads < 1 or dim % num_heads or width < 1 or width % num_heads:
            raise ValueError(
                f"deformable attention: got {num_heads} heads for {dim} channels and {width} of the values, expected a "
                f"divisor of both"
            )
        self.shape = (num_heads, num_levels, num_points)
        self.sampling_offsets = nn.Linear(dim, 2 * math.prod(self.shape))
        self.attention_weights = nn.Linear(dim, math.prod(self.shape))
        self.value_proj = nn.Linear(dim, width)
        self.output_proj = nn.Linear(width, dim)
        for layer in (self.sampling_offsets, self.attention_weights):
            nn.init.zeros_(layer.weight)
        for layer in (self.value_proj, self.output_proj):
            nn.init.xavier_uniform_(layer.weight)
        for layer in (self.attention_weights, self.value_proj, self.output_proj):
            nn.init.zeros_(layer.bias)
        angles = torch.arange(num_heads, dtype=torch.float32) * (2 * math.pi / num_heads)
        directions = torch.stack([angles.cos(), angles.sin()], dim=-1)  # [heads, 2]
        directions = directions / directions.abs().amax(-1, keepdim=True)
        distances = torch.arange(1, num_points + 1)[:, None]
        offsets = (directions[:, None, None] * distances).expand(*self.shape, 2)  # [heads, levels, points, 2]
        with torch.no_grad():
            self.sampling_offsets.bias.copy_(offsets.flatten())

    def forward(self, queries: Tensor, values: Tensor, where: References) -> Tensor:
        """Places and samples are in float32 at least: in half precision a large map has fewer places than positions.

        Args:
            queries: ``[B, Q, C]``.
            values: Positions of all levels, row by row, ``[B, N, C]``.
            where: Of these queries in these levels.

        Returns:
            ``[B, Q, C]``.
        """
        heads, levels, points = self.shape
        offsets = self.sampling_offsets(queries).unflatten(-1, (heads, levels, points, 2))  # [B, Q, heads, L, P, 2]
        weights = self.attention_weights(queries).unflatten(-1, (heads, levels * points))  # [B, Q, heads, L*P]
        values = self.value_proj(values).unflatten(-1, (heads, -1))  # [B, N, heads, d]
        dtype = torch.promote_types(values.dtype, torch.float32)
        offsets, weights, wide = (x.to(dtype) for x in (offsets, weights, values))
        weights = weights.softmax(-1).unflatten(-1, (levels, points))  # [B, Q, heads, L, P]
        parts = wide.split([h * w for h, w in where.sizes], dim=1)
        maps = [part.unflatten(1, size) for part, size in zip(parts, where.sizes)]  # [B, h, w, heads, d] each
        y = deform_attend(maps, where.points + offsets * where.steps, weights)  # [B, Q, heads * d]
        return self.output_proj(y.to(values.dtype))  # [B, Q, C]
