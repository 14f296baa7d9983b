"""Resizing of linear maps over the tokens of a window."""

import torch
from torch import Tensor

from vitdense.layers.resize import resize_grid


def resize_window_linear(x: Tensor, window: tuple[int, int], rule: str = "bicubic") -> Tensor:
    """Resize the weight or the bias of a linear map over the tokens of a window to another window.

    Outputs and inputs are resized as grids. Weights are divided by the ratio of new to old inputs, so that a mean of
    the window stays a mean. There is no published rule; this one is ours.

    Args:
        x: Weight ``[heads, h, w, h, w]``, outputs then inputs; or bias ``[heads, h, w]``.
        window: New window (H, W) in tokens.
        rule: See `vitdense.layers.resize`.

    Returns:
        ``[heads, H, W, H, W]`` or ``[heads, H, W]``.
    """
    heads, h, w = x.shape[:3]
    y = resize_grid(x.reshape(heads, h, w, -1), window, rule)  # [heads, H, W, h*w or 1]
    if x.ndim == 3:
        return y[..., 0]  # [heads, H, W]
    y = resize_grid(y.reshape(-1, h, w, 1), window, rule)  # [heads*H*W, H, W, 1]
    return y.view(heads, *window, *window) * (h * w / (window[0] * window[1]))  # [heads, H, W, H, W]


def bicubic_weights(old: int, new: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """The bicubic resize of one axis as an interpolation matrix, ``[new, old]``."""
    return resize_grid(torch.eye(old, device=device, dtype=dtype)[None, :, None], (new, 1))[0, :, 0]  # [new, old]
