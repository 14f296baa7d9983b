"""Multi-scale deformable attention: a query samples a few points of maps, at positions that it predicts."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitdense.errors import OptionError
from vitdense.layers.layout import cached_by_size, compute_dtype, copied

POINTS = 4  # per head and level
Grid = tuple[int, int, int]  # height and width of a map in positions, and its stride in pixels


def deform_attend(levels: Sequence[Tensor], points: Tensor, weights: Tensor) -> Tensor:
    """Weighted bilinear samples (Deformable DETR, equation 3), ``[B, Q, heads d]``; level by level, to save memory.

    Args:
        levels: Maps of values, ``[B, h, w, heads, d]`` each.
        points: (x, y) in -1..1 of a map, zero outside, ``[B, Q, heads, levels, points, 2]``; samples have their dtype.
        weights: Weights of the points, ``[B, Q, heads, levels, points]``.
    """
    batch, _, heads, *_ = points.shape
    parts = []
    for level, grid, weight in zip(levels, *of_levels(points, weights)):
        sampled = F.grid_sample(pixels_of(level, grid.dtype), grid, align_corners=False)  # [B * heads, d, Q, points]
        parts.append((sampled * weight).sum(-1))  # [B * heads, d, Q]
    return sum(parts[1:], parts[0]).unflatten(0, (batch, heads)).permute(0, 3, 1, 2).flatten(2)  # [B, Q, heads*d]


def of_levels(points: Tensor, weights: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Points, ``[B * heads, Q, points, 2]``, and weights, ``[B * heads, 1, Q, points]``, of every level."""
    grids = copied(points.transpose(1, 2)).flatten(0, 1)  # [B * heads, Q, levels, points, 2]
    weights = copied(weights.transpose(1, 2)).flatten(0, 1)[:, None]  # [B * heads, 1, Q, levels, points]
    return grids.unbind(2), weights.unbind(3)


def pixels_of(level: Tensor, dtype: torch.dtype) -> Tensor:
    """A level ``[B, h, w, heads, d]`` as `grid_sample` takes it, ``[B * heads, d, h, w]``."""
    pixels = level.permute(0, 3, 4, 1, 2)  # [B, heads, d, h, w]
    return pixels.to(dtype, copy=True, memory_format=torch.contiguous_format).flatten(0, 1)  # [B * heads, d, h, w]


class References(NamedTuple):
    """Reference points of the queries in every value level, normalised to [-1, 1]."""

    points: Tensor  # centre (x, y) of every query, [Q, 1, levels, 1, 2], float32 at least
    steps: Tensor  # width and height of a position of every level, [levels, 1, 2], float32 at least
    sizes: list[tuple[int, int]]  # of the levels


def references(x: Tensor, queries: tuple[Grid, ...], levels: tuple[Grid, ...]) -> References:
    """Reference points for all positions of the query maps, row by row; `x` is a tensor on the device.

    All maps start at the same corner of the image. They may cover more than the image, as patches and strides round up.
    """
    (rows, heights), (columns, widths) = (
        _centres(x, *(tuple((grid[i], grid[2]) for grid in grids) for grids in (queries, levels))) for i in range(2)
    )
    sizes, points = [(h, w) for h, w, _ in queries], []
    for (h, w), y, x in zip(sizes, rows.split([h for h, _ in sizes]), columns.split([w for _, w in sizes])):
        pair = x.expand(h, -1, -1), y.unsqueeze(1).expand(-1, w, -1)  # [h, w, levels] each
        points.append(torch.stack(pair, dim=-1).flatten(0, 1))  # [h*w, levels, 2]
    points = torch.cat(points) if len(points) > 1 else points[0]  # [Q, levels, 2]
    steps = torch.stack([widths, heights], dim=-1)  # [levels, 2]
    return References(points[:, None, :, None], steps[:, None], [(h, w) for h, w, _ in levels])


@cached_by_size
def _centres(
    queries: tuple[tuple[int, int], ...], levels: tuple[tuple[int, int], ...], device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Reference points along one axis, for maps given as (number of positions, stride).

    Returns the centre of every query in every level, ``[queries, levels]``, and the length of a position of every
    level, ``[levels]``; a level spans -1 to 1.
    """
    options = {"device": device, "dtype": torch.promote_types(dtype, torch.float32)}
    one = torch.ones(1, **options)
    centres = torch.cat([(2 * torch.arange(n, **options) + 1) * stride for n, stride in queries])  # in half pixels
    counts, extents = (torch.cat([one * m for m in pair]) for pair in zip(*((n, n * stride) for n, stride in levels)))
    return centres[:, None] / extents - 1, 2 / counts


class DeformableAttention(nn.Module):
    """Multi-scale deformable attention (Deformable DETR, Zhu et al., ICLR 2021, section 4.1).

    Initially head i looks into the i-th direction, with its j-th point j positions away.

    Args:
        dim: Channels of queries and values.
        num_heads: Heads; they divide the channels.
        num_levels: Maps that are sampled.
        ratio: Channels of the projected values over `dim`.
    """

    def __init__(self, dim: int, num_heads: int, num_levels: int, ratio: float = 1.0) -> None:
        super().__init__()
        width = int(dim * ratio)
        if dim % num_heads or width % num_heads:
            raise OptionError(f"deformable attention: got {num_heads} heads, expected a divisor of {dim} and {width}")
        self.shape = (num_heads, num_levels, POINTS)
        self.sampling_offsets = nn.Linear(dim, 2 * math.prod(self.shape))
        self.attention_weights = nn.Linear(dim, math.prod(self.shape))
        self.value_proj, self.output_proj = nn.Linear(dim, width), nn.Linear(width, dim)
        for layer in (self.value_proj, self.output_proj):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        for parameter in (self.sampling_offsets.weight, *self.attention_weights.parameters()):
            nn.init.zeros_(parameter)
        angles = torch.arange(num_heads) * (2 * math.pi / num_heads)
        directions = torch.stack([angles.cos(), angles.sin()], dim=-1)  # [heads, 2]
        directions = directions / directions.abs().amax(-1, keepdim=True)
        offsets = directions[:, None, None] * torch.arange(1, POINTS + 1)[:, None]  # [heads, 1, points, 2]
        with torch.no_grad():
            self.sampling_offsets.bias.copy_(offsets.expand(*self.shape, 2).flatten())

    def forward(self, queries: Tensor, values: Tensor, where: References) -> Tensor:
        """Queries ``[B, Q, C]`` read the positions of all levels, row by row, ``[B, N, C]``: ``[B, Q, C]``.

        Coordinates are in at least float32, because half precision cannot tell the positions of a large map apart.
        """
        heads, levels, points = self.shape
        queries = queries.to(compute_dtype(queries))  # once: two layers read them
        values = self.value_proj(values).unflatten(-1, (heads, -1))  # [B, N, heads, d]
        dtype = torch.promote_types(values.dtype, torch.float32)
        parts = values.split([h * w for h, w in where.sizes], dim=1)
        maps = [part.unflatten(1, size) for part, size in zip(parts, where.sizes)]  # [B, h, w, heads, d]
        offsets = self.sampling_offsets(queries).unflatten(-1, (*self.shape, 2))  # [B, Q, heads, L, P, 2]
        weights = self.attention_weights(queries).unflatten(-1, (heads, levels * points))
        weights = weights.softmax(-1, dtype=dtype).unflatten(-1, (levels, points))  # [B, Q, heads, L, P]
        y = deform_attend(maps, where.points + offsets * where.steps, weights)  # [B, Q, heads*d]
        return self.output_proj(y.to(values.dtype, memory_format=torch.contiguous_format))  # [B, Q, C]
