"""RoIAlign. B images, C channels, H x W map, K RoIs (image index, x1, y1, x2, y2) in pixels, p x q bins."""

import torch
from torch import Tensor

from vitdense.mm.ops.dtypes import widen
from vitdense.mm.ops.finder import OpNotAvailableError


def roi_align_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """RoIAlign (He et al. 2017): input [B, C, H, W], rois [K, 5] -> output [K, C, p, q].

    A bin is the mean of its bilinear samples (`pool_mode` 1), or 0 without samples. `pool_mode` 0, the maximum, raises
    `OpNotAvailableError`; only it uses `argmax_y` and `argmax_x`.
    """
    if pool_mode != 1:
        raise OpNotAvailableError("roi_align with pool_mode='max'")
    input, rois = widen(input, rois)  # RoIs are not cast to half maps, whose dtype has fewer places than images pixels
    rois = rois.to(input.dtype)
    bins = (aligned_height, aligned_width)
    output.copy_(torch.ops.torchvision.roi_align(input, rois, spatial_scale, *bins, sampling_ratio, aligned))


def roi_align_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    grad_input: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Add the gradient of `roi_align_forward`, grad_output [K, C, p, q], to grad_input [B, C, H, W].

    torchvision's CUDA kernel raises under `torch.use_deterministic_algorithms`; matrix products replace it there. The
    compiled op of mmcv is not deterministic.
    """
    grad, rois = widen(grad_output, rois)
    rois = rois.to(grad.dtype)
    if grad.is_cuda and torch.are_deterministic_algorithms_enabled():
        total = _deterministic_backward(grad, rois, spatial_scale, sampling_ratio, aligned, grad_input.shape)
    else:
        bins = (aligned_height, aligned_width)
        total = torch.ops.torchvision._roi_align_backward(
            grad, rois, spatial_scale, *bins, *grad_input.shape, sampling_ratio, aligned
        )
    grad_input.add_(total)


def _deterministic_backward(
    grad: Tensor, rois: Tensor, spatial_scale: float, sampling_ratio: int, aligned: bool, shape: torch.Size
) -> Tensor:
    """Gradient [B, C, H, W] of the input. A bilinear weight is one of the row times one of the column."""
    x1, y1, x2, y2 = (rois[:, 1:] * spatial_scale - (0.5 if aligned else 0)).unbind(1)
    rows = _bin_weights(y1, y2, grad.shape[2], shape[2], sampling_ratio, aligned)  # [K, p, H]
    cols = _bin_weights(x1, x2, grad.shape[3], shape[3], sampling_ratio, aligned)  # [K, q, W]
    total = grad.new_zeros(shape)
    for k, image in enumerate(rois[:, 0].long().tolist()):
        total[image] += rows[k].T @ grad[k] @ cols[k]  # [C, H, W]
    return total


def _bin_weights(start: Tensor, stop: Tensor, bins: int, size: int, sampling_ratio: int, aligned: bool) -> Tensor:
    """Weight [K, bins, size] of each pixel along one axis in each bin of the RoIs from start to stop [K]."""
    length = stop - start if aligned else (stop - start).clamp(min=1)
    step = length[:, None] / bins  # [K, 1]
    samples = torch.full_like(step, sampling_ratio) if sampling_ratio > 0 else step.ceil()  # per bin
    origin = start[:, None] + torch.arange(bins, device=start.device) * step  # [K, bins]
    pixels = torch.arange(size, device=start.device)
    weights = start.new_zeros(len(start), bins, size)
    for i in range(int(samples.max()) if len(samples) else 0):
        place = origin + (i + 0.5) * step / samples.clamp(min=1)  # [K, bins]
        counts = (i < samples) & (place >= -1) & (place <= size)
        distance = (place.clamp(0, size - 1)[..., None] - pixels).abs()  # [K, bins, size]
        weights += (1 - distance).clamp(min=0) * counts[..., None]
    return weights / samples.clamp(min=1)[..., None]
