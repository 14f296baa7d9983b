"""The mask branch of RF-DETR: inner products of queries with an enlarged map, trained at points."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitdense.layers.blocks import LayerNorm

MASK_STRIDE = 4  # pixels
OVERSAMPLE, IMPORTANT = 3, 0.75  # points drawn per kept point, and the share of the least certain ones among the kept
PIXELS_PER_POINT = 16


class Masks(NamedTuple):
    """Masks as factors: H x W pixels of stride `MASK_STRIDE`, Q queries.

    Attributes:
        pixels: ``[B, C, H, W]``.
        queries: ``[B, Q, C]``.
        bias: ``[1]``.
    """

    pixels: Tensor
    queries: Tensor
    bias: Tensor

    def logits(self) -> Tensor:
        return (self.queries @ self.pixels.flatten(2) + self.bias).unflatten(2, self.pixels.shape[2:])

    def logits_of(self, image: int, queries: Tensor) -> Tensor:
        """Logits of some queries ``[n]`` of an image, ``[n, H, W]``."""
        pixels = self.pixels[image]
        return (self.queries[image, queries] @ pixels.flatten(1) + self.bias).unflatten(1, pixels.shape[1:])


class SpatialBlock(nn.Module):
    """Depthwise 3x3 convolution, LayerNorm, linear layer and GELU, with a shortcut."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
        self.norm, self.fc = LayerNorm(dim, eps=1e-6), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, h, w]`` to the same."""
        return x + F.gelu(self.fc(self.norm(self.conv(x).permute(0, 2, 3, 1)))).permute(0, 3, 1, 2)


class MaskBranch(nn.Module):
    """Masks of the queries of decoder layers; block i precedes the masks of layer i.

    Args:
        dim: Channels.
        num_blocks: Decoder layers.
    """

    def __init__(self, dim: int, num_blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(SpatialBlock(dim) for _ in range(num_blocks))
        self.pixel_proj, self.query_proj = nn.Conv2d(dim, dim, 1), nn.Linear(dim, dim)
        self.norm, self.fc1, self.fc2 = LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, stride: int, first: Tensor | None, outs: Sequence[Tensor]) -> list[Masks]:
        """Masks of every layer, then of the selected rows.

        Args:
            x: Map ``[B, C, h, w]``.
            stride: Stride of the map in pixels.
            first: Selected rows, ``[B, Q, C]``; None for masks of the last layer only.
            outs: Queries after every layer, ``[B, Q, C]`` each.
        """
        size = [n * stride // MASK_STRIDE for n in x.shape[2:]]
        x = start = F.interpolate(x, size=size, mode="bilinear")  # [B, C, H, W]
        found = []
        for i, (block, queries) in enumerate(zip(self.blocks, outs)):
            x = block(x)  # [B, C, H, W]
            if first is not None or i == len(outs) - 1:
                found.append(self.masks(x, queries))
        return found if first is None else [*found, self.masks(start, first)]

    def masks(self, x: Tensor, queries: Tensor) -> Masks:
        """Masks from a map ``[B, C, H, W]`` and queries ``[B, Q, C]``."""
        queries = queries + self.fc2(F.gelu(self.fc1(self.norm(queries))))  # [B, Q, C]
        return Masks(self.pixel_proj(x), self.query_proj(queries), self.bias)


def read_maps(maps: Tensor, points: Tensor) -> Tensor:
    """Maps ``[n, C, H, W]`` bilinearly at points ``[n, P, 2]`` (x, y), 0 to 1, border repeated: ``[n, C, P]``."""
    return F.grid_sample(maps, 2 * points[:, None] - 1, padding_mode="border", align_corners=False)[:, :, 0]


def read_masks(masks: Tensor, which: Tensor, points: Tensor) -> Tensor:
    """Masks `which` ``[n]`` of ``[T, H, W]`` at the pixels of points ``[n, P, 2]``: 0 or 1, ``[n, P]``.

    The masks themselves are not copied; there would be a copy for every group of queries.
    """
    h, w = masks.shape[1:]
    columns, rows = (points * points.new_tensor([w, h])).long().unbind(-1)  # [n, P] each
    return masks[which[:, None], rows.clamp(max=h - 1), columns.clamp(max=w - 1)].to(points.dtype)


@torch.no_grad()
def uncertain_points(logits: Tensor) -> Tensor:
    """Points ``[n, P, 2]`` of masks ``[n, H, W]``: the least certain of many random ones, and others (PointRend).

    P is the number of rows, and at least one per `PIXELS_PER_POINT` pixels.
    """
    n, h, w = logits.shape
    number = max(h, h * w // PIXELS_PER_POINT)
    points = torch.rand(n, OVERSAMPLE * number, 2, device=logits.device)
    certain = read_maps(logits[:, None], points)[:, 0].abs()  # [n, OVERSAMPLE * number]
    kept = int(IMPORTANT * number)
    index = certain.topk(kept, dim=1, largest=False).indices[..., None].expand(-1, -1, 2)  # [n, kept, 2]
    return torch.cat([points.gather(1, index), torch.rand(n, number - kept, 2, device=logits.device)], dim=1)
