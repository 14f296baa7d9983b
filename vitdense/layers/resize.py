"""Resolution transfer: pure functions from a tensor at one grid to the same tensor at another.

All compute in float32 or wider (timm's rule for bias tables in float32), return the dtype of the input, and are exactly
the identity when the grids are equal.
The default rule is the authors' (align_corners False, no antialias). ``timm`` reproduces timm's:

===========  =============================================  ======================  ======================
rule         relative position bias tables                  absolute positions      patch embedding
===========  =============================================  ======================  ======================
``bicubic``  bicubic                                        bicubic                 refused
``timm``     linear between geometrically spaced positions  bicubic with antialias  `resize_patch`
===========  =============================================  ======================  ======================
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from vitdense.errors import OptionError, check_choice

RULES = ("bicubic", "timm")


def is_resized(old: Sequence[int], new: Sequence[int]) -> bool:
    """Whether sizes differ. Symbols, while compiling or exporting, always do, so that one program serves all sizes."""
    symbolic = torch.compiler.is_dynamo_compiling() or any(isinstance(n, torch.SymInt) for n in new)
    return symbolic or tuple(old) != tuple(new)


def wide_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which a table is resized: float32, or float64 if it has that."""
    return torch.promote_types(x.dtype, torch.float32)


def resize_grid(x: Tensor, size: tuple[int, int], rule: str = "bicubic") -> Tensor:
    """Resize a map of features ``[B, h, w, C]`` to a grid (H, W), ``[B, H, W, C]``, by one of the rules above."""
    check_choice("resize", rule, RULES)
    if not is_resized(x.shape[1:3], size):
        return x
    y = x.to(wide_dtype(x)).permute(0, 3, 1, 2)  # [B, C, h, w]
    y = F.interpolate(y, size=size, mode="bicubic", align_corners=False, antialias=rule == "timm")  # [B, C, H, W]
    return y.permute(0, 2, 3, 1).to(x.dtype)  # [B, H, W, C]


def resize_patch(weight: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize the convolution of a patch embedding, ``[D, C, h, w]``, to patches of (H, W) pixels, ``[D, C, H, W]``.

    Resized patches then have the same embedding (FlexiViT, section 3.4), by the pseudo-inverse of the bicubic resize
    with antialias.
    """
    wide = weight.to(wide_dtype(weight))

    def inverse(old: int, new: int) -> Tensor:  # [new, old]
        unit = torch.eye(old, dtype=torch.float64)[None, :, None]  # [1, old, 1, old]
        return torch.linalg.pinv(resize_grid(unit, (new, 1), "timm")[0, :, 0].T).to(wide)

    rows, columns = (inverse(*axis) for axis in zip(weight.shape[2:], size))
    return torch.einsum("Hh,Ww,dchw->dcHW", rows, columns, wide).to(weight.dtype)  # [D, C, H, W]


def resize_to_stride(x: Tensor, stride: int, new_stride: int, size: tuple[int, int]) -> Tensor:
    """Resize a map ``[B, C, h, w]`` bilinearly to a map of another stride for the same image: ``[B, C, *size]``.

    Strides are in pixels, and need not divide each other. The border of `x` is repeated.
    """
    step = math.lcm(stride, new_stride) // stride
    h, w = ((n + step - 1) // step * step for n in x.shape[2:])  # whole positions of both strides
    if stride != new_stride:
        x = F.pad(x, (0, w - x.shape[3], 0, h - x.shape[2]), mode="replicate") if step > 1 else x  # [B, C, h, w]
        x = F.interpolate(x, size=(h * stride // new_stride, w * stride // new_stride), mode="bilinear")
    return crop(x, size)  # [B, C, H, W]


def crop(x: Tensor, size: tuple[int, int], dim: int = 2) -> Tensor:
    """The top left (H, W) of a map, whose rows are dimension `dim`: of ``[B, C, h, w]``, ``[B, C, H, W]``."""
    rows, columns = (old - new for old, new in zip(x.shape[dim : dim + 2], size))
    if torch.compiler.is_compiling():  # a slice would ask for sizes; padding does not, but copies
        return F.pad(x, (*[0, 0] * (x.ndim - dim - 2), 0, -columns, 0, -rows))  # [B, C, H, W]
    return x[(*[slice(None)] * dim, slice(size[0]), slice(size[1]))]  # [B, C, H, W]


def resize_bias_table(table: Tensor, window: tuple[int, int], rule: str = "bicubic") -> Tensor:
    """Resize a relative position bias table to another window.

    Args:
        table: ``[2h - 1, 2w - 1, heads]`` of a window (h, w) in tokens.
        window: New window (H, W) in tokens.
        rule: See above.

    Returns:
        ``[2H - 1, 2W - 1, heads]``.
    """
    check_choice("resize", rule, RULES)
    new = (2 * window[0] - 1, 2 * window[1] - 1)
    if tuple(table.shape[:2]) == new:
        return table
    if rule == "bicubic":
        return resize_grid(table[None], new)[0]  # [2H-1, 2W-1, heads]
    if min(table.shape[:2]) < 3:
        rows, columns = table.shape[:2]
        raise OptionError(f"resize='timm': got a table of {rows}x{columns}, expected at least 3x3; use 'bicubic'")
    from timm.layers import resize_rel_pos_bias_table  # here: most models need no timm

    shape = (table.shape[2], *new)
    resized = resize_rel_pos_bias_table(table.permute(2, 0, 1), window, shape)  # timm < 1.0.31: [heads (2H-1), 2W-1]
    return resized.reshape(shape).permute(1, 2, 0).to(table.dtype)  # [2H-1, 2W-1, heads]


def resize_relative_position(table: Tensor, length: int) -> Tensor:
    """Resize a decomposed relative position table ``[L, d]`` linearly to ``[length, d]``, as MViTv2's code does."""
    if not is_resized(table.shape[:1], (length,)):
        return table
    y = table.to(wide_dtype(table)).T[None]  # [1, d, L]
    y = F.interpolate(y, size=length, mode="linear", align_corners=False)  # [1, d, length]
    return y[0].T.to(table.dtype)  # [length, d]
