"""What rename rules do to tensors, each with its inverse: layouts in which projects keep the same numbers."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from vitdense.weights.errors import CheckpointMismatchError
from vitdense.weights.rename import Change

# Plain ViTs by width: name, blocks and heads (ViT Table 1, DeiT Table 1, DeiT III Table 1). No parameter tells heads.
VIT_SIZES = {
    192: ("tiny", 12, 3),
    384: ("small", 12, 6),
    512: ("medium", 12, 8),
    768: ("base", 12, 12),
    1024: ("large", 24, 16),
    1280: ("huge", 32, 16),
}


def from_unfold(x: Tensor) -> Tensor:
    """Reorder the input of a patch merging from ``nn.Unfold`` order to the authors'.

    Unfold lists channel c and neighbour k (2 * row + column) at ``4 c + k``; the authors' code lists neighbour
    blocks (0, 0), (1, 0), (0, 1), (1, 1) of all channels each. mmdet, mmseg and mmpretrain use the former.

    Args:
        x: ``[out, 4 C]`` weight or ``[4 C]`` norm parameter.
    """
    blocks = x.unflatten(-1, (-1, 4))[..., [0, 2, 1, 3]]  # [..., C, 4]
    return blocks.transpose(-1, -2).flatten(-2)  # [..., 4*C]


def to_unfold(x: Tensor) -> Tensor:
    """The inverse of `from_unfold`."""
    blocks = x.unflatten(-1, (4, -1))[..., [0, 2, 1, 3], :]  # [..., 4, C]
    return blocks.transpose(-1, -2).flatten(-2)  # [..., 4*C]


def square_table(x: Tensor) -> Tensor:
    """Flat bias table ``[(2w - 1)^2, heads]`` of a square window to ours, ``[2w - 1, 2w - 1, heads]``.

    Raises:
        CheckpointMismatchError: No square window has so many rows.
    """
    side = math.isqrt(x.shape[0]) if x.ndim == 2 else 0
    if side % 2 == 0 or side * side != x.shape[0]:
        raise CheckpointMismatchError(
            f"a relative_position_bias_table has shape {tuple(x.shape)}, expected [(2w - 1)^2, heads]: flat tables "
            f"are read as those of square windows only, for they do not tell height from width; under vitdense's "
            f"names a table carries its window"
        )
    return x.unflatten(0, (side, side))  # [2w-1, 2w-1, heads]


def flat_table(x: Tensor) -> Tensor:
    """The inverse of `square_table`.

    Raises:
        CheckpointMismatchError: The window is not square, which no reader of the flat table would know.
    """
    if x.shape[0] != x.shape[1]:
        raise CheckpointMismatchError(
            f"a table of a {(x.shape[0] + 1) // 2}x{(x.shape[1] + 1) // 2} window cannot be written flat, for it would "
            f"be read as another window's; only vitdense's names carry both sides"
        )
    return x.flatten(0, 1)  # [(2w-1)^2, heads]


def dense_position(x: Tensor) -> Tensor:
    """Absolute position embedding of the authors' dense code, ``[1, C, h, w]``, to ours, ``[1, h, w, C]``."""
    if x.ndim != 4:
        raise CheckpointMismatchError(
            f"absolute_pos_embed has shape {tuple(x.shape)}, expected [1, C, h, w] beside the names of a dense backbone"
        )
    return x.permute(0, 2, 3, 1).contiguous()  # [1, h, w, C]


def flat_position(x: Tensor) -> Tensor:
    """Absolute position embedding of the authors' classifier, ``[1, h * w, C]`` of a square image, to ours.

    Raises:
        CheckpointMismatchError: No square image has so many patches.
    """
    side = math.isqrt(x.shape[1]) if x.ndim == 3 else 0
    if side == 0 or side * side != x.shape[1]:
        raise CheckpointMismatchError(
            f"the absolute position embedding has shape {tuple(x.shape)}, expected [1, h * h, C]: flat positions are "
            f"read as those of a square image only, for they do not tell height from width; under vitdense's names a "
            f"table carries its grid, [1, h, w, C]"
        )
    return x.unflatten(1, (side, side))  # [1, h, w, C]


def flatten_position(x: Tensor) -> Tensor:
    """The inverse of `flat_position`.

    Raises:
        CheckpointMismatchError: The image is not square, which no reader of the flat table would know.
    """
    if x.shape[1] != x.shape[2]:
        raise CheckpointMismatchError(
            f"positions of a grid of {x.shape[1]}x{x.shape[2]} cannot be written flat, for they would be read as "
            f"another grid's; only vitdense's names carry both sides"
        )
    return x.flatten(1, 2)  # [1, h*h, C]


def position_with_tokens(x: Tensor) -> tuple[Tensor, ...]:
    """As `flat_position`, of ``[1, E + h * h, C]``, whose first E rows, 0 to 2, are those of the class and distillation
    tokens: the map, then each of the rows, ``[1, 1, C]``.

    The number of rows tells E: (k + 1)^2 - k^2 = 2 k + 1 is 3 or more from k = 1 on, so that of three successive
    numbers of rows at most one is that of a grid.
    """
    rows = x.shape[1] if x.ndim == 3 else 0
    extra = next((n for n in (0, 1, 2) if rows > n and math.isqrt(rows - n) ** 2 == rows - n), 0)
    return flat_position(x[:, extra:] if extra else x), *x[:, :extra].split(1, dim=1)[:extra]


def join_position(table: Tensor, *of_tokens: Tensor) -> Tensor:
    """The inverse of `position_with_tokens`."""
    return torch.cat([*of_tokens, flatten_position(table)], dim=1)  # [1, E+h*h, C]


def without_time(x: Tensor) -> Tensor:
    """Weight of a convolution over time and space, ``[out, in, 1, h, w]``, as one over space; others as they are.

    Raises:
        CheckpointMismatchError: It spans several moments.
    """
    if x.ndim != 5:
        return x
    if x.shape[2] != 1:
        raise CheckpointMismatchError(
            f"a convolution has a weight of shape {tuple(x.shape)}, expected one moment in time: it is of a video model"
        )
    return x.squeeze(2)  # [out, in, h, w]


UNFOLD = Change(from_unfold, to_unfold)
TABLE = Change(square_table, flat_table)
DENSE_POSITION = Change(dense_position, lambda x: x.permute(0, 3, 1, 2).contiguous())
FLAT_POSITION = Change(flat_position, flatten_position)
TOKEN_POSITION = Change(position_with_tokens, join_position)
NO_TIME = Change(without_time, lambda x: x)  # what reads them with a time axis also reads them without
# torchvision keeps the index of a window flat.
FLAT_INDEX = Change(lambda x: x.unflatten(0, (math.isqrt(x.numel()), -1)), lambda x: x.flatten())
# torchvision's V2 keeps a bias for keys that it sets to zero in every forward pass.
NO_KEY_BIAS = Change(
    lambda x: (x.chunk(3)[0].clone(), x.chunk(3)[2].clone()),
    lambda q, v: torch.cat([q, torch.zeros_like(q), v]),
)


def _check_axes(x: Tensor, axes: str) -> None:
    if x.ndim != len(axes.split(",")):
        raise CheckpointMismatchError(
            f"a weight under google's names has shape {tuple(x.shape)}, expected the axes [{axes}]; attention that was "
            f"saved otherwise is not known"
        )


def _check_alike(parts: Sequence[Tensor]) -> None:
    if len({x.shape for x in parts}) > 1:
        raise CheckpointMismatchError(
            f"queries, keys and values under google's names have the shapes "
            f"{', '.join(str(tuple(x.shape)) for x in parts)}, expected the same"
        )


def _heads(width: int) -> int:
    if width not in VIT_SIZES:
        raise CheckpointMismatchError(
            f"google's names keep the heads of an attention apart, and nothing tells how many one of width {width} "
            f"has: known are the widths {', '.join(map(str, VIT_SIZES))}; convert to another project's names"
        )
    return VIT_SIZES[width][2]


def join_kernels(*kernels: Tensor) -> Tensor:
    """Queries', keys' and values' ``[in, heads, d]`` of JAX as one weight ``[3 * heads * d, in]``."""
    for x in kernels:
        _check_axes(x, "in, heads, d")
    _check_alike(kernels)
    return torch.cat([x.flatten(1).T for x in kernels])


def split_kernels(x: Tensor) -> tuple[Tensor, ...]:
    """The inverse of `join_kernels`, for the published widths."""
    return tuple(part.T.unflatten(1, (_heads(x.shape[1]), -1)).contiguous() for part in x.chunk(3))


def join_biases(*biases: Tensor) -> Tensor:
    """Queries', keys' and values' ``[heads, d]`` of JAX as one ``[3 * heads * d]``."""
    for x in biases:
        _check_axes(x, "heads, d")
    _check_alike(biases)
    return torch.cat([x.flatten() for x in biases])


def split_biases(x: Tensor) -> tuple[Tensor, ...]:
    """The inverse of `join_biases`, for the published widths."""
    return tuple(part.unflatten(0, (_heads(part.numel()), -1)) for part in x.chunk(3))


def from_out_kernel(x: Tensor) -> Tensor:
    """``[heads, d, out]`` of JAX as ``[out, heads * d]``."""
    _check_axes(x, "heads, d, out")
    return x.flatten(0, 1).T.contiguous()


def to_out_kernel(x: Tensor) -> Tensor:
    """The inverse of `from_out_kernel`, for the published widths."""
    return x.T.unflatten(0, (_heads(x.shape[1]), -1)).contiguous()


def from_dense_kernel(x: Tensor) -> Tensor:
    """``[in, out]`` of JAX as ``[out, in]``, and back."""
    _check_axes(x, "in, out")
    return x.T.contiguous()


def from_conv_kernel(x: Tensor) -> Tensor:
    """``[h, w, in, out]`` of JAX as ``[out, in, h, w]``."""
    _check_axes(x, "h, w, in, out")
    return x.permute(3, 2, 0, 1).contiguous()


QKV_KERNEL = Change(join_kernels, split_kernels)
QKV_BIAS = Change(join_biases, split_biases)
OUT_KERNEL = Change(from_out_kernel, to_out_kernel)
DENSE_KERNEL = Change(from_dense_kernel, from_dense_kernel)
CONV_KERNEL = Change(from_conv_kernel, lambda x: x.permute(2, 3, 1, 0).contiguous())
# mmseg's ViT has patches without a bias by default, which is a bias of zero: so it is read, and written.
PATCH_BIAS = Change(
    lambda weight, *bias: (weight, *(bias or (weight.new_zeros(weight.shape[:1]),))),
    lambda weight, bias: (weight, bias) if bias.any() else (weight,),
)
