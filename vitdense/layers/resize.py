"""Resolution transfer: pure functions from a tensor at one grid to the same tensor at another.

The default rule is bicubic as in the authors' code (align_corners False, no antialias). All compute in float32, return
the input's dtype, and are exactly the identity when the grids are equal. Two more rules are here by name, for users
who must reproduce what those projects do:

====================  ===============================================  ===========================
rule                  relative position bias tables                    absolute positions
====================  ===============================================  ===========================
``bicubic``           bicubic                                          bicubic
``timm``              linear between geometrically spaced positions    bicubic with antialias
``mmpretrain``        cubic spline through geometrically spaced        bicubic
                      positions (needs scipy)
====================  ===============================================  ===========================
"""

import torch
import torch.nn.functional as F
from torch import Tensor

RULES = ("bicubic", "timm", "mmpretrain")


def _check(rule: str) -> None:
    if rule not in RULES:
        raise ValueError(f"resize: got {rule!r}, expected one of {', '.join(RULES)}")


def resize_grid(x: Tensor, size: tuple[int, int], rule: str = "bicubic") -> Tensor:
    """Resize a map of features.

    Args:
        x: ``[B, h, w, C]``.
        size: New grid (H, W).
        rule: See above.

    Returns:
        ``[B, H, W, C]``.
    """
    _check(rule)
    if tuple(x.shape[1:3]) == tuple(size):
        return x
    y = x.float().permute(0, 3, 1, 2)  # [B, C, h, w]
    y = F.interpolate(y, size=size, mode="bicubic", align_corners=False, antialias=rule == "timm")  # [B, C, H, W]
    return y.permute(0, 2, 3, 1).to(x.dtype)  # [B, H, W, C]


def resize_position_embedding(
    embedding: Tensor, old: tuple[int, int], new: tuple[int, int], num_extra: int = 0, rule: str = "bicubic"
) -> Tensor:
    """Resize an absolute position embedding, extra tokens untouched (DeiT section 6).

    Args:
        embedding: ``[1, num_extra + h * w, C]``, extra tokens (class, distillation) first.
        old: Grid (h, w) of the embedding in tokens.
        new: Grid (H, W) wanted.
        num_extra: Number of extra tokens.
        rule: See above.

    Returns:
        ``[1, num_extra + H * W, C]``.

    Raises:
        ValueError: The embedding does not have the tokens of grid `old`.
    """
    if embedding.shape[1] != num_extra + old[0] * old[1]:
        raise ValueError(
            f"position embedding has {embedding.shape[1]} tokens, but a grid of {old[0]}x{old[1]} with {num_extra} "
            f"extra tokens has {num_extra + old[0] * old[1]}; give the grid and the extra tokens it was made for"
        )
    extra, grid = embedding[:, :num_extra], embedding[:, num_extra:]  # [1, extra, C], [1, h*w, C]
    grid = resize_grid(grid.unflatten(1, old), new, rule).flatten(1, 2)  # [1, H*W, C]
    return torch.cat([extra, grid], dim=1) if num_extra else grid  # [1, extra + H*W, C]


def resize_bias_table(table: Tensor, window: tuple[int, int], rule: str = "bicubic") -> Tensor:
    """Resize a relative position bias table to another window.

    Args:
        table: ``[2h - 1, 2w - 1, heads]`` of a window (h, w) in tokens.
        window: Window (H, W) it is wanted for.
        rule: See above.

    Returns:
        ``[2H - 1, 2W - 1, heads]``.

    Raises:
        ValueError: There is no such rule, or the table is too small for it.
    """
    _check(rule)
    new = (2 * window[0] - 1, 2 * window[1] - 1)
    if tuple(table.shape[:2]) == new:
        return table
    if rule == "bicubic":
        return resize_grid(table[None], new)[0]  # [2H-1, 2W-1, heads]
    rows, columns = (_geometric_weights(o, n, rule).to(table.device) for o, n in zip(table.shape[:2], new))
    return torch.einsum("Hh,Ww,hwc->HWc", rows, columns, table.float()).to(table.dtype)  # [2H-1, 2W-1, heads]


def resize_relative_position(table: Tensor, length: int) -> Tensor:
    """Linear resize of one axis of a decomposed relative position table, as the MViTv2 authors do at run time.

    Args:
        table: ``[L, d]``.
        length: Rows wanted.

    Returns:
        ``[length, d]``.
    """
    if table.shape[0] == length:
        return table
    y = table.to(torch.promote_types(table.dtype, torch.float32)).T[None]  # [1, d, L]
    y = F.interpolate(y, size=length, mode="linear", align_corners=False)  # [1, d, length]
    return y[0].T.to(table.dtype)  # [length, d]


def _geometric_weights(old: int, new: int, rule: str) -> Tensor:
    """One axis of the BEiT authors' resize: the `old` entries are taken to stand at distances from the centre that grow
    geometrically, to just reach `new` // 2, and are read at whole distances. ``[new, old]``."""
    least = {"timm": 3, "mmpretrain": 5}[rule]
    if old < least:
        raise ValueError(
            f"resize={rule!r} needs a bias table of at least {least} entries a side (a window of {(least + 1) // 2}), "
            f"got {old}; use 'bicubic'"
        )
    low, high = 1.01, 1.5
    while high - low > 1e-6:
        ratio = (low + high) / 2
        if (1 - ratio ** (old // 2)) / (1 - ratio) > new // 2:
            high = ratio
        else:
            low = ratio
    steps = ratio ** torch.arange(old // 2, dtype=torch.float64)
    right = steps.cumsum(0)  # [old // 2]
    places = torch.cat([-right.flip(0), torch.zeros(1, dtype=torch.float64), right])  # [old]
    wanted = torch.arange(new, dtype=torch.float64) - new // 2  # [new]
    if rule == "timm":
        after = torch.searchsorted(places, wanted.clamp(places[0], places[-1])).clamp(1, old - 1)  # [new]
        share = ((wanted - places[after - 1]) / (places[after] - places[after - 1])).clamp(0, 1)
        weights = torch.zeros(new, old, dtype=torch.float64)
        weights.scatter_(1, after[:, None], share[:, None])
        return weights.scatter_(1, after[:, None] - 1, 1 - share[:, None]).float()  # [new, old]
    try:
        from scipy.interpolate import make_interp_spline
    except ImportError as error:
        raise ImportError("resize='mmpretrain' needs scipy: pip install scipy") from error
    spline = make_interp_spline(places.numpy(), torch.eye(old, dtype=torch.float64).numpy(), k=3)
    return torch.from_numpy(spline(wanted.clamp(places[0], places[-1]).numpy())).float()  # [new, old]
