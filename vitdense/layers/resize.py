"""Resolution transfer: pure functions from a tensor at one grid to the same tensor at another.

All are bicubic as in the authors' code (align_corners False, no antialias), computed in float32, returned in the
input's dtype, and exactly the identity when the grids are equal.
"""

import torch.nn.functional as F
from torch import Tensor


def resize_grid(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Bicubic resize of a map of features.

    Args:
        x: ``[B, h, w, C]``.
        size: New grid (H, W).

    Returns:
        ``[B, H, W, C]``.
    """
    if tuple(x.shape[1:3]) == tuple(size):
        return x
    y = F.interpolate(x.float().permute(0, 3, 1, 2), size=size, mode="bicubic", align_corners=False)  # [B, C, H, W]
    return y.permute(0, 2, 3, 1).to(x.dtype)  # [B, H, W, C]


def resize_bias_table(table: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Bicubic resize of a relative position bias table from one window to another.

    Args:
        table: ``[(2 h - 1) (2 w - 1), heads]`` of window `old`.
        old: Window (h, w) in tokens the table was made for.
        new: Window (h, w) in tokens it is wanted for.

    Returns:
        ``[(2 H - 1) (2 W - 1), heads]`` of window `new`.

    Raises:
        ValueError: The table does not have the rows of window `old`.
    """
    (oh, ow), (nh, nw) = ((2 * h - 1, 2 * w - 1) for h, w in (old, new))
    if table.shape[0] != oh * ow:
        raise ValueError(
            f"bias table has {table.shape[0]} rows, but a window of {old[0]}x{old[1]} needs {oh * ow}; "
            f"give the window the table was made for"
        )
    grid = table.view(1, oh, ow, -1)  # [1, 2h-1, 2w-1, heads]
    return resize_grid(grid, (nh, nw)).reshape(nh * nw, -1)  # [(2H-1)(2W-1), heads]
