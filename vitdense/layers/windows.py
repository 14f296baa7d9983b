"""Cutting feature maps into windows, and the mask of shifted windows.

Maps are ``[B, H, W, C]``; windows are row-major: image, window row, window column.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Grid(NamedTuple):
    """What `unpartition` must know to undo `partition`: the map, the window and the shift, all in tokens (h, w)."""

    size: tuple[int, int]
    window: tuple[int, int]
    shift: tuple[int, int]

    @property
    def padded(self) -> tuple[int, int]:
        """Size of the map after padding right and bottom to whole windows."""
        (h, w), (wh, ww) = self.size, self.window
        return h + -h % wh, w + -w % ww

    @property
    def counts(self) -> tuple[int, int]:
        """Number of window rows and window columns."""
        (h, w), (wh, ww) = self.padded, self.window
        return h // wh, w // ww


def partition(x: Tensor, window: tuple[int, int], shift: tuple[int, int] = (0, 0)) -> tuple[Tensor, Grid]:
    """Pad right and bottom with zeros to whole windows, roll by ``-shift``, and cut.

    The order is that of the authors' dense code: pad, then roll (Swin section 3.2; classification code in
    timm rolls first, which differs wherever the map is not a multiple of the window).

    Args:
        x: Map, ``[B, H, W, C]``.
        window: Window size (h, w) in tokens.
        shift: Cyclic shift (h, w) in tokens.

    Returns:
        Windows ``[B * nH * nW, wh * ww, C]`` and the grid that `unpartition` needs.
    """
    b, h, w, c = x.shape
    grid = Grid((h, w), window, shift)
    hp, wp = grid.padded
    if (hp, wp) != (h, w):
        x = F.pad(x, (0, 0, 0, wp - w, 0, hp - h))  # [B, Hp, Wp, C]
    if shift != (0, 0):
        x = torch.roll(x, (-shift[0], -shift[1]), dims=(1, 2))
    (nh, nw), (wh, ww) = grid.counts, window
    x = x.view(b, nh, wh, nw, ww, c).transpose(2, 3)  # [B, nH, nW, wh, ww, C]
    return x.reshape(b * nh * nw, wh * ww, c), grid  # [B*nH*nW, wh*ww, C]


def unpartition(windows: Tensor, grid: Grid) -> Tensor:
    """Undo `partition`: windows ``[B * nH * nW, wh * ww, C]`` to the map ``[B, H, W, C]``, padding cropped."""
    (h, w), (hp, wp), (nh, nw), (wh, ww) = grid.size, grid.padded, grid.counts, grid.window
    x = windows.view(-1, nh, nw, wh, ww, windows.shape[-1]).transpose(2, 3)  # [B, nH, wh, nW, ww, C]
    x = x.reshape(-1, hp, wp, windows.shape[-1])  # [B, Hp, Wp, C]
    if grid.shift != (0, 0):
        x = torch.roll(x, grid.shift, dims=(1, 2))
    return x[:, :h, :w]  # [B, H, W, C]


def shift_mask(grid: Grid, dtype: torch.dtype, device: torch.device, masked: float = -100.0) -> Tensor:
    """The additive mask that keeps tokens apart which only the cyclic shift made neighbours.

    The rolled, padded map falls into three row bands and three column bands, cut at ``-window`` and ``-shift``;
    tokens see each other when they share both. Padding shares its band with the pixels beside it: padded keys
    stay visible, as in the authors' dense code on which every published detector was trained.

    Args:
        grid: Map, window and shift. The mask is the same for every image of a batch.
        dtype: Of the result.
        device: Of the result.
        masked: Value for a masked pair. Swin V1 uses -100, not minus infinity.

    Returns:
        ``[nH * nW, 1, wh * ww, wh * ww]``, 0 or `masked`.
    """

    def bands(size: int, window: int, shift: int) -> Tensor:  # -> [n, window], values 0, 1, 2
        i = torch.arange(size, device=device)
        return ((i >= size - window).long() + (i >= size - shift).long()).view(-1, window)

    rows, cols = (bands(p, w, s) for p, w, s in zip(grid.padded, grid.window, grid.shift))
    labels = 3 * rows[:, None, :, None] + cols[None, :, None, :]  # [nH, nW, wh, ww]
    labels = labels.flatten(2).flatten(0, 1)  # [nH*nW, wh*ww]
    apart = labels[:, None, :] != labels[:, :, None]  # [nH*nW, wh*ww, wh*ww]
    return torch.zeros(apart.shape, dtype=dtype, device=device).masked_fill_(apart, masked)[:, None]
