"""The stand-in for `mmcv._ext`: all ops but the deformable ones.

Boxes are (x1, y1, x2, y2) in pixels. B images, C channels, H x W map, K RoIs (image index, x1, y1, x2, y2) in pixels,
p x q bins; N boxes or anchors.
"""

from collections.abc import Callable

import numpy as np
import torch
import torchvision
from torch import Tensor

from vitdense.ops.deformable import widen
from vitdense.ops.table import OpNotAvailableError

ROI_OPTIONS = ("spatial_scale", "aligned_height", "aligned_width", "sampling_ratio", "aligned")  # as torchvision's
FLT_MIN = torch.finfo(torch.float32).tiny  # smallest probability in the compiled losses, for every dtype


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Indices [kept] of the boxes [N, 4] that are kept, highest score first."""
    boxes, scores = widen(boxes, scores)
    if boxes.dtype == torch.float32:
        # mmcv compares with a C float, torchvision with a double: 0.3f > 0.3 would suppress an overlap of exactly 0.3.
        iou_threshold = torch.tensor(iou_threshold, dtype=torch.float32).item()
    # torchvision has offset 0 only, hence x2 + offset.
    return torchvision.ops.nms(boxes + boxes.new_tensor([0, 0, offset, offset]), scores, iou_threshold)


SOFT_NMS_WEIGHT: dict[int, Callable[[np.ndarray, float, float], np.ndarray]] = {
    0: lambda overlap, threshold, sigma: ~(overlap >= threshold),  # "naive"
    1: lambda overlap, threshold, sigma: np.where(overlap >= threshold, 1 - overlap, np.float32(1)),  # "linear"
    2: lambda overlap, threshold, sigma: torch.from_numpy(-(overlap * overlap) / sigma).exp().numpy(),  # "gaussian"
}


def softnms(
    boxes: Tensor,
    scores: Tensor,
    dets: Tensor,
    iou_threshold: float,
    sigma: float,
    min_score: float,
    method: int,
    offset: int,
) -> Tensor:
    """Soft-NMS (Bodla et al. 2017): lower the scores of overlapping boxes instead of dropping the boxes.

    Fills the first rows of `dets` [N, 5] with (box, lowered score) in the order of selection and returns their indices
    [kept]. Ties are resolved as in the compiled op: it keeps the candidates in one array, swaps the best to the front
    and replaces a dropped candidate by the last. Boxes without area do not overlap (NaN scores in the compiled
    "gaussian"). All tensors are on the CPU, as for the compiled op. Each selection depends on the ones before it: the
    loop is in numpy, whose calls cost a fraction of torch's.
    """
    boxes, scores = widen(boxes, scores)
    areas = (boxes[:, 2] - boxes[:, 0] + offset) * (boxes[:, 3] - boxes[:, 1] + offset)  # [N]
    rows = torch.cat([boxes.T, scores[None], areas[None]]).numpy()  # [6, N]
    index = np.arange(rows.shape[1])
    threshold, lowest = rows.dtype.type(iou_threshold), rows.dtype.type(min_score)
    count, done = len(index), 0
    with np.errstate(divide="ignore", invalid="ignore"):  # boxes without area
        while done < count:
            best = done + rows[4, done:count].argmax()
            for array in (rows, index):
                array[..., [done, best]] = array[..., [best, done]]
            x1, y1, x2, y2, _, area = rows[:, done]
            rest = rows[:, done + 1 : count]  # [6, rest]
            width = np.minimum(x2, rest[2]) - np.maximum(x1, rest[0]) + offset
            height = np.minimum(y2, rest[3]) - np.maximum(y1, rest[1]) + offset
            shared = np.maximum(width, 0) * np.maximum(height, 0)  # [rest]
            overlap = shared / (area + rest[5] - shared)
            overlap[overlap != overlap] = 0
            rest[4] *= SOFT_NMS_WEIGHT[method](overlap, threshold, sigma)
            done += 1
            dropped = rest[4] < lowest  # [rest]
            if dropped.any():
                left = len(dropped) - np.count_nonzero(dropped)
                order = np.arange(left)
                order[dropped[:left]] = left + np.flatnonzero(~dropped[left:])[::-1]
                count = done + left
                for array in (rows, index):
                    array[..., done:count] = array[..., done + order]
    dets[:count] = torch.from_numpy(rows[:5, :count].T)
    return torch.from_numpy(index[:count])


def nms_match(dets: Tensor, iou_threshold: float) -> list[list[int]]:
    """Groups of indices into dets [N, 5]: a kept box, then the boxes it suppresses (IoU >= threshold), by score."""
    (dets,) = widen(dets)
    order = dets[:, 4].argsort(descending=True, stable=True)
    groups = []
    while len(order):
        hit = torchvision.ops.box_iou(dets[order[:1], :4], dets[order, :4])[0] >= iou_threshold
        hit[0] = True  # also if the threshold is above 1 or the box has no area
        groups.append(order[hit].tolist())
        order = order[~hit]
    return groups


def roi_align_forward(
    input: Tensor, rois: Tensor, output: Tensor, argmax_y: Tensor, argmax_x: Tensor, **options: float
) -> None:
    """RoIAlign (He et al. 2017): input [B, C, H, W], rois [K, 5] -> output [K, C, p, q].

    A bin is the mean of its bilinear samples (`pool_mode` 1), or 0 without samples. `pool_mode` 0, the maximum, raises
    `OpNotAvailableError`; only it uses `argmax_y` and `argmax_x`.
    """
    if options["pool_mode"] != 1:
        raise OpNotAvailableError("roi_align with pool_mode='max'")
    input, rois = widen(input, rois)  # RoIs are not cast to half maps, whose dtype has fewer places than images pixels
    *grid, ratio, aligned = (options[name] for name in ROI_OPTIONS)
    output.copy_(torch.ops.torchvision.roi_align(input, rois.to(input.dtype), *grid, ratio, aligned))


def roi_align_backward(
    grad_output: Tensor, rois: Tensor, argmax_y: Tensor, argmax_x: Tensor, grad_input: Tensor, **options: float
) -> None:
    """Add the gradient of `roi_align_forward`, grad_output [K, C, p, q], to grad_input [B, C, H, W].

    torchvision's CUDA kernel raises under `torch.use_deterministic_algorithms`; matrix products replace it there. The
    compiled op of mmcv is not deterministic.
    """
    grad, rois = widen(grad_output, rois)
    rois, shape = rois.to(grad.dtype), grad_input.shape
    *grid, ratio, aligned = (options[name] for name in ROI_OPTIONS)
    if grad.is_cuda and torch.are_deterministic_algorithms_enabled():
        total = _deterministic_backward(grad, rois, grid[0], ratio, aligned, shape)
    else:
        total = torch.ops.torchvision._roi_align_backward(grad, rois, *grid, *shape, ratio, aligned)
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


def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Focal loss (Lin et al. 2017, eq. 5) of logits [N, classes] for targets [N] -> output [N, classes].

    Target `classes` is background; weight: class weights [classes], or empty.
    """
    _, right, wrong, balance = _sigmoid_parts(input, target, weight, alpha)
    output.copy_(-balance * wrong**gamma * right.clamp(min=FLT_MIN).log())


def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """Fill grad_input [N, classes] with the derivative of the loss (Lin et al. 2017, appendix B)."""
    sign, right, wrong, balance = _sigmoid_parts(input, target, weight, alpha)
    slope = wrong - gamma * right * right.clamp(min=FLT_MIN).log()
    grad_input.copy_(-balance * sign * wrong**gamma * slope)


def _sigmoid_parts(input: Tensor, target: Tensor, weight: Tensor, alpha: float) -> tuple[Tensor, ...]:
    """Per logit [N, classes]: sign (+1 target class, -1 others), probabilities of right and wrong, and weight."""
    logits, weight = widen(input, weight)
    own = target[:, None] == torch.arange(logits.shape[1], device=logits.device)
    sign = torch.where(own, 1.0, -1.0).to(logits)
    balance = torch.where(own, alpha, 1 - alpha).to(logits)
    if weight.numel():
        # Background has no class weight and gets 1. The compiled op reads out of bounds there.
        known = (target >= 0) & (target < len(weight))
        balance = balance * torch.where(known, weight[target.where(known, 0)], 1.0)[:, None]
    return sign, torch.sigmoid(sign * logits), torch.sigmoid(-sign * logits), balance


def get_compiler_version() -> str:
    """Compiler of the ops in mmcv's environment report, and its CUDA version."""
    return "n/a (stand-in of vitdense)"


get_compiling_cuda_version = get_compiler_version
