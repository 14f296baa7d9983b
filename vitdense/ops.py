"""The ops of mmcv that detectors and segmenters call, without a compiler: torchvision.ops and plain torch.

Every function has the name, argument names and in-place results of its namesake in mmcv's compiled extension
(onedl-mmcv 2.3.6, `mmcv/ops/csrc/pytorch/pybind.cpp`), so `mmcv.ops` works on either; arguments that only size the
buffers of the compiled kernels (`columns`, `ones`, `im2col_step`) are part of that convention and not needed here. All
run on the CPU and on CUDA. Half types are computed in float32 and cast back, which is more exact than the compiled
kernels.

Importing this module needs torch and torchvision, not mmcv. `vitdense._finder` puts it in place of a missing
`mmcv._ext`.

Shapes: B images, C channels, H x W map, K RoIs of (image index, x1, y1, x2, y2) in pixels, p x q bins, N boxes.
"""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor

from vitdense._finder import OpNotAvailableError, OpsInUse, install, ops_in_use

__all__ = ["OPS", "OpNotAvailableError", "OpsInUse", "install", "ops_in_use"]

FLT_MIN = torch.finfo(torch.float32).tiny  # the compiled losses clamp probabilities here, in every type


def _wide(*tensors: Tensor) -> list[Tensor]:
    """The tensors in the type to compute in: float32 for half types, which torchvision's kernels do not all take."""
    return [t if t.dtype == torch.float64 else t.float() for t in tensors]


# ---- boxes ----


def _overlap(first: Tensor, second: Tensor, offset: int, over_first: bool = False) -> Tensor:
    """Intersection over union (or over the first box) of boxes [..., 4] that broadcast; widths are x2 - x1 + offset."""
    low = torch.maximum(first[..., :2], second[..., :2])
    high = torch.minimum(first[..., 2:], second[..., 2:])
    shared = (high - low + offset).clamp(min=0).prod(-1)
    area_first, area_second = ((box[..., 2:] - box[..., :2] + offset).prod(-1) for box in (first, second))
    # Malformed boxes (x2 < x1) can have an area below that of a pixel; the compiled CUDA kernel clamps there.
    return shared / (area_first if over_first else area_first + area_second - shared).clamp(min=offset)


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Indices [kept] of the boxes [N, 4] that greedy suppression keeps, best score first."""
    boxes, scores = _wide(boxes, scores)
    if boxes.numel() == 0:
        return boxes.new_zeros(0, dtype=torch.long)
    if boxes.dtype == torch.float32:
        # mmcv compares with a C float, torchvision with a double: 0.3f > 0.3 would suppress an overlap of exactly 0.3.
        iou_threshold = torch.tensor(iou_threshold, dtype=torch.float32).item()
    # x2 + 1 - x1 is x2 - x1 + 1: torchvision knows only offset 0.
    return torchvision.ops.nms(boxes + boxes.new_tensor([0, 0, offset, offset]), scores, iou_threshold)


SOFT_NMS_WEIGHT: dict[int, Callable[[Tensor, float, float], Tensor]] = {
    0: lambda overlap, threshold, sigma: (~(overlap >= threshold)).to(overlap),  # "naive"
    1: lambda overlap, threshold, sigma: torch.where(overlap >= threshold, 1 - overlap, 1.0),  # "linear"
    2: lambda overlap, threshold, sigma: torch.exp(-(overlap * overlap) / sigma),  # "gaussian"
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
    """Soft-NMS (Bodla et al. 2017): decay the scores of overlapping boxes instead of dropping them.

    Fills the first rows of `dets` [N, 5] with (box, decayed score) in the order of selection and returns their indices
    [kept]. Ties follow the compiled op, which keeps its candidates in one array, swaps the best to the front and fills
    the place of a dropped one with the last. Two boxes without area do not overlap (compiled "gaussian": NaN scores).
    """
    rows = torch.cat(_wide(boxes, scores[:, None]), 1)  # [N, 5]
    index = torch.arange(len(rows), device=rows.device)
    count, done = len(rows), 0
    while done < count:
        best = done + int(rows[done:count, 4].argmax())
        for array in (rows, index):
            array[[done, best]] = array[[best, done]]
        rest = slice(done + 1, count)
        overlap = _overlap(rows[done, :4], rows[rest, :4], offset).nan_to_num(nan=0.0)
        rows[rest, 4] *= SOFT_NMS_WEIGHT[method](overlap, iou_threshold, sigma)
        alive = ~(rows[rest, 4] < min_score)  # [rest]
        left = int(alive.sum())
        order = torch.arange(left, device=rows.device)
        order[~alive[:left]] = alive[left:].nonzero()[:, 0].flip(0) + left
        for array in (rows, index):
            array[done + 1 : done + 1 + left] = array[rest][order]
        done, count = done + 1, done + 1 + left
    dets[:count] = rows[:count]
    return index[:count]


def nms_match(dets: Tensor, iou_threshold: float) -> list[list[int]]:
    """Groups of indices into dets [N, 5]: each kept box, then those it suppressed (overlap >= threshold), by score."""
    (dets,) = _wide(dets)
    order = dets[:, 4].argsort(descending=True, stable=True)
    groups = []
    while len(order):
        hit = _overlap(dets[order[0], :4], dets[order, :4], 0) >= iou_threshold
        hit[0] = True  # itself, also where the threshold is above 1 or the box has no area
        groups.append(order[hit].tolist())
        order = order[~hit]
    return groups


def bbox_overlaps(bboxes1: Tensor, bboxes2: Tensor, ious: Tensor, mode: int, aligned: bool, offset: int) -> None:
    """Fill `ious` ([N1, N2], or [N] for aligned pairs); mode 0 is over the union, 1 over the first box."""
    first, second = _wide(bboxes1, bboxes2)
    ious.copy_(_overlap(first if aligned else first[:, None], second, offset, over_first=mode == 1))


# ---- RoIs ----

Samples = list[tuple[Tensor, Tensor]]  # per sample of a bin on one axis: coordinates [K, bins], which count


def _corners(y: Tensor, x: Tensor, height: int, width: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The (row, column, weight) of the four pixels of a bilinear sample; weight 0 beyond [-1, size], as in RoIAlign."""
    inside = (y >= -1) & (y <= height) & (x >= -1) & (x <= width)
    y, x = y.clamp(0, height - 1), x.clamp(0, width - 1)
    top, left = y.long(), x.long()
    down, right = y - top, x - left
    for row, weight_y in ((top, 1 - down), ((top + 1).clamp(max=height - 1), down)):
        for col, weight_x in ((left, 1 - right), ((left + 1).clamp(max=width - 1), right)):
            yield row, col, weight_y * weight_x * inside


def _align_samples(
    rois: Tensor, bins: tuple[int, int], spatial_scale: float, sampling_ratio: int, aligned: bool
) -> tuple[Samples, Samples]:
    """Where RoIAlign samples the rows and the columns of its bins; each RoI has its own number of samples per bin."""
    axes = []
    for axis, count in zip((2, 1), bins):
        shift = 0.5 if aligned else 0.0
        start = rois[:, axis, None] * spatial_scale - shift  # [K, 1]
        size = rois[:, axis + 2, None] * spatial_scale - shift - start
        if not aligned:
            size = size.clamp(min=1)
        step = size / count
        grid = torch.full_like(step, sampling_ratio) if sampling_ratio > 0 else step.ceil()
        origin = start + torch.arange(count, device=rois.device) * step  # [K, bins]
        samples = range(int(grid.max()) if len(grid) else 0)
        axes.append([(origin + (i + 0.5) * step / grid, (i < grid).expand_as(origin)) for i in samples])
    return axes[0], axes[1]


def _pool_samples(
    rois: Tensor, bins: tuple[int, int], spatial_scale: float, size: tuple[int, int]
) -> tuple[Samples, Samples]:
    """The pixel rows and columns of each bin of RoIPool; no rounding of the RoI, unlike in torchvision."""
    extent = (rois[:, 3:] + 1 - rois[:, 1:3]) * spatial_scale  # [K, 2]: width, height
    proper = (extent > 0).all(1, keepdim=True)  # a malformed RoI pools nothing
    axes = []
    for axis, count, limit in zip((2, 1), bins, size):
        start = rois[:, axis, None] * spatial_scale  # [K, 1]
        step = ((rois[:, axis + 2, None] + 1) * spatial_scale - start) / count
        edge = torch.arange(count, device=rois.device)
        first = (edge * step + start).floor().clamp(0, limit)  # [K, bins]
        stop = ((edge + 1) * step + start).ceil().clamp(0, limit)
        samples = range(int((stop - first).max().clamp(min=0)) if len(first) else 0)
        axes.append([(first + i, (first + i < stop) & proper) for i in samples])
    return axes[0], axes[1]


def _live_samples(rows: Samples, cols: Samples) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Sample by sample: the RoIs [k] that still have one, its y [k, p, 1], x [k, 1, q], which bins count [k, p, q]."""
    for y, y_live in rows:
        for x, x_live in cols:
            some = (y_live.any(1) & x_live.any(1)).nonzero()[:, 0]
            if len(some):
                yield some, y[some, :, None], x[some, None], y_live[some, :, None] & x_live[some, None]


def _max_pool(
    input: Tensor, rois: Tensor, bins: tuple[int, int], rows: Samples, cols: Samples
) -> tuple[Tensor, Tensor, Tensor]:
    """Largest sample of each bin (first of equals), its y and its x, all [K, C, p, q]; 0, -1, -1 for an empty bin.

    One sample of all RoIs at a time: memory stays at that of the output, however large a RoI is.
    """
    height, width = input.shape[-2:]
    pixels = input.permute(0, 2, 3, 1)  # [B, H, W, C]
    batch = rois[:, 0].long()[:, None, None]
    best = input.new_full((len(rois), input.shape[1], *bins), float("-inf"))
    arg_y, arg_x = torch.full_like(best, -1), torch.full_like(best, -1)
    found = torch.zeros_like(best[:, :1], dtype=torch.bool)
    for some, y, x, live in _live_samples(rows, cols):
        corners = _corners(y, x, height, width)
        value = sum(weight[..., None] * pixels[batch[some], row, col] for row, col, weight in corners)  # [k, p, q, C]
        value, live = value.permute(0, 3, 1, 2), live[:, None]  # [k, C, p, q], [k, 1, p, q]
        better = live & ((value > best[some]) | ~found[some])
        best[some] = torch.where(better, value, best[some])
        arg_y[some] = torch.where(better, y[:, None], arg_y[some])
        arg_x[some] = torch.where(better, x[:, None], arg_x[some])
        found[some] |= live
    return best.masked_fill(~found, 0), arg_y, arg_x


def _planes(rois: Tensor, channels: int) -> Tensor:
    """Index of each RoI's channel planes [K, C, 1, 1] in the flattened [B * C] of a feature map."""
    return (rois[:, 0].long()[:, None] * channels + torch.arange(channels, device=rois.device))[..., None, None]


def _scatter(into: Tensor, index: Tensor, values: Tensor) -> None:
    """Add values at flat indices; deterministic on CUDA where torch is asked for that."""
    into.view(-1).index_add_(0, index.expand_as(values).reshape(-1), values.reshape(-1).to(into.dtype))


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

    A bin is the mean of its bilinear samples (mode 1), or their maximum (mode 0), whose place goes to argmax_y and
    argmax_x [K, C, p, q], -1 for a bin without a sample. Such a bin is 0 in both modes; the compiled op leaves its own
    start value in the maximum (-10000 on the CPU, -3.4e38 on CUDA).
    """
    input, rois = _wide(input, rois.to(input.dtype))
    bins = (aligned_height, aligned_width)
    if pool_mode == 1:
        output.copy_(torch.ops.torchvision.roi_align(input, rois, spatial_scale, *bins, sampling_ratio, aligned))
        return
    samples = _align_samples(rois, bins, spatial_scale, sampling_ratio, aligned)
    for tensor, result in zip((output, argmax_y, argmax_x), _max_pool(input, rois, bins, *samples)):
        tensor.copy_(result)


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
    """Add to grad_input [B, C, H, W] what grad_output [K, C, p, q] sends back through `roi_align_forward`.

    Where torch is asked for deterministic algorithms on CUDA, a plain torch body replaces torchvision's kernel, which
    refuses; the compiled op of mmcv would silently not be deterministic.
    """
    grad, rois = _wide(grad_output, rois.to(grad_output.dtype))
    bins = (aligned_height, aligned_width)
    if pool_mode == 0:
        total = _align_max_backward(grad, rois, argmax_y, argmax_x, grad_input.shape)
    elif grad.is_cuda and torch.are_deterministic_algorithms_enabled():
        rows, cols = _align_samples(rois, bins, spatial_scale, sampling_ratio, aligned)
        total = _align_mean_backward(grad, rois, rows, cols, grad_input.shape)
    else:
        total = torch.ops.torchvision._roi_align_backward(
            grad, rois, spatial_scale, *bins, *grad_input.shape, sampling_ratio, aligned
        )
    grad_input.add_(total)


def _align_max_backward(grad: Tensor, rois: Tensor, arg_y: Tensor, arg_x: Tensor, shape: torch.Size) -> Tensor:
    total = grad.new_zeros(shape)
    _, channels, height, width = shape
    plane = _planes(rois, channels)
    grad = grad.masked_fill((arg_y == -1) & (arg_x == -1), 0)
    for row, col, weight in _corners(*_wide(arg_y, arg_x), height, width):
        _scatter(total, (plane * height + row) * width + col, grad * weight)
    return total


def _align_mean_backward(grad: Tensor, rois: Tensor, rows: Samples, cols: Samples, shape: torch.Size) -> Tensor:
    total = grad.new_zeros(shape)
    _, channels, height, width = shape
    plane = _planes(rois, channels)
    samples = [sum((live[:, :1].to(grad) for _, live in axis), grad.new_zeros(len(rois), 1)) for axis in (rows, cols)]
    share = grad / (samples[0] * samples[1]).clamp(min=1)[..., None, None]
    for some, y, x, live in _live_samples(rows, cols):
        for row, col, weight in _corners(y, x, height, width):
            index = (plane[some] * height + row[:, None]) * width + col[:, None]  # [k, C, p, q]
            _scatter(total, index, share[some] * (weight * live)[:, None])
    return total


def roi_pool_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
) -> None:
    """RoIPool (Girshick 2015): the maximum [K, C, p, q] of the pixels of each bin, its place y * W + x, -1 for none.

    torchvision rounds RoIs to pixels first and gives other results. A RoI of no size is 0 and has no gradient; the
    compiled op lets its gradient flow into pixel (0, 0).
    """
    input, rois = _wide(input, rois.to(input.dtype))
    bins = (pooled_height, pooled_width)
    samples = _pool_samples(rois, bins, spatial_scale, input.shape[-2:])
    pooled, y, x = _max_pool(input, rois, bins, *samples)
    output.copy_(pooled)
    argmax.copy_(torch.where(y < 0, -1, y.long() * input.shape[-1] + x.long()))


def roi_pool_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax: Tensor,
    grad_input: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
) -> None:
    """Add to grad_input [B, C, H, W] each bin's gradient at the pixel that was its maximum."""
    (grad,) = _wide(grad_output)
    total = grad.new_zeros(grad_input.shape)
    _, channels, height, width = grad_input.shape
    index = _planes(rois, channels) * (height * width) + argmax.long().clamp(min=0)
    _scatter(total, index, grad.masked_fill(argmax < 0, 0))
    grad_input.add_(total)


# ---- losses ----


def _class_weight(weight: Tensor, target: Tensor) -> Tensor | float:
    """weight[target] [N], and 1 for targets without one (background; the compiled op reads past the table)."""
    if weight.numel() == 0:
        return 1.0
    known = (target >= 0) & (target < len(weight))
    return torch.where(known, weight[target.where(known, 0)], 1.0)


def _sigmoid_parts(input: Tensor, target: Tensor, weight: Tensor, alpha: float) -> tuple[Tensor, ...]:
    """Per logit [N, C]: sign (+1 own class, -1 others), probability of being right, of being wrong, and its weight."""
    logits, weight = _wide(input, weight)
    own = target[:, None] == torch.arange(logits.shape[1], device=logits.device)
    sign = torch.where(own, 1.0, -1.0).to(logits)
    balance = torch.where(own, alpha, 1 - alpha).to(logits)
    class_weight = _class_weight(weight, target)
    balance = balance * (class_weight[:, None] if isinstance(class_weight, Tensor) else class_weight)
    return sign, torch.sigmoid(sign * logits), torch.sigmoid(-sign * logits), balance


def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Focal loss (Lin et al. 2017, eq. 5) of logits [N, C] for targets [N] in [0, C] -> output [N, C].

    Target C is background; weight: class weights [C], or empty.
    """
    _, right, wrong, balance = _sigmoid_parts(input, target, weight, alpha)
    output.copy_(-balance * wrong**gamma * right.clamp(min=FLT_MIN).log())


def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """Fill grad_input [N, C] with the derivative of `sigmoid_focal_loss_forward` (Lin et al. 2017, appendix B)."""
    sign, right, wrong, balance = _sigmoid_parts(input, target, weight, alpha)
    slope = wrong - gamma * right * right.clamp(min=FLT_MIN).log()
    grad_input.copy_(-balance * sign * wrong**gamma * slope)


def _softmax_parts(softmax: Tensor, target: Tensor, weight: Tensor, alpha: float) -> tuple[Tensor, ...]:
    """Probability [N] of each target class, its clamped logarithm, its weight: 0 for a negative (ignored) target."""
    softmax, weight = _wide(softmax, weight)
    right = softmax.gather(1, target.clamp(min=0)[:, None])[:, 0]
    balance = alpha * (target >= 0).to(softmax) * _class_weight(weight, target)
    return right, right.clamp(min=FLT_MIN).log(), balance


def softmax_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Focal loss of class probabilities [N, C] for targets [N] -> output [N]; 0 where the target is negative."""
    right, log_right, balance = _softmax_parts(input, target, weight, alpha)
    output.copy_(-balance * (1 - right) ** gamma * log_right)


def softmax_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, buff: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """Fill grad_input [N, C] with the derivative to the logits, buff [N] with its factor common to all classes."""
    right, log_right, balance = _softmax_parts(input, target, weight, alpha)
    wrong = 1 - right
    modulation = gamma * wrong ** (gamma - 1) * right * log_right if gamma else 0.0
    slope = balance * (modulation - wrong**gamma)
    own = target[:, None] == torch.arange(input.shape[1], device=input.device)
    buff.copy_(slope)
    grad_input.copy_(slope[:, None] * (own.to(slope) - input.to(slope.dtype)))


# ---- deformable convolution ----
# Offsets [B, 2 * G * kh * kw, h, w] are (y, x) pairs per deformable group and tap, in mmcv as in torchvision.


def _deform_conv(
    input: Tensor, weight: Tensor, offset: Tensor, mask: Tensor | None = None, bias: Tensor | None = None
) -> list[Tensor]:
    """The tensor arguments of torchvision's op; version 1 has neither mask nor bias."""
    mask = input.new_zeros(len(input), 1) if mask is None else mask
    bias = input.new_zeros(len(weight)) if bias is None else bias
    return _wide(input, weight, offset, mask, bias)


def deform_conv_forward(
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    output: Tensor,
    columns: Tensor,
    ones: Tensor,
    kW: int,
    kH: int,
    dW: int,
    dH: int,
    padW: int,
    padH: int,
    dilationW: int,
    dilationH: int,
    group: int,
    deformable_group: int,
    im2col_step: int,
) -> None:
    """Deformable convolution (Dai et al. 2017): input [B, C, H, W], weight [O, C / group, kH, kW] -> [B, O, h, w]."""
    geometry = (dH, dW, padH, padW, dilationH, dilationW, group, deformable_group, False)
    output.copy_(torch.ops.torchvision.deform_conv2d(*_deform_conv(input, weight, offset), *geometry))


def deform_conv_backward_input(
    input: Tensor,
    offset: Tensor,
    gradOutput: Tensor,
    gradInput: Tensor,
    gradOffset: Tensor,
    weight: Tensor,
    columns: Tensor,
    kW: int,
    kH: int,
    dW: int,
    dH: int,
    padW: int,
    padH: int,
    dilationW: int,
    dilationH: int,
    group: int,
    deformable_group: int,
    im2col_step: int,
) -> None:
    """Add the gradients of `deform_conv_forward` to gradInput and gradOffset, shaped as input and offset."""
    geometry = (dH, dW, padH, padW, dilationH, dilationW, group, deformable_group, False)
    tensors = _deform_conv(input, weight, offset)
    grads = torch.ops.torchvision._deform_conv2d_backward(*_wide(gradOutput), *tensors, *geometry)
    gradInput.add_(grads[0])
    gradOffset.add_(grads[2])


def deform_conv_backward_parameters(
    input: Tensor,
    offset: Tensor,
    gradOutput: Tensor,
    gradWeight: Tensor,
    columns: Tensor,
    ones: Tensor,
    kW: int,
    kH: int,
    dW: int,
    dH: int,
    padW: int,
    padH: int,
    dilationW: int,
    dilationH: int,
    group: int,
    deformable_group: int,
    scale: float,
    im2col_step: int,
) -> None:
    """Add `scale` times the gradient of `deform_conv_forward` to gradWeight, which has the weight's shape."""
    # torchvision computes all gradients at once; the weight's own value does not enter this one.
    geometry = (dH, dW, padH, padW, dilationH, dilationW, group, deformable_group, False)
    tensors = _deform_conv(input, torch.zeros_like(gradWeight), offset)
    grads = torch.ops.torchvision._deform_conv2d_backward(*_wide(gradOutput), *tensors, *geometry)
    gradWeight.add_(grads[1], alpha=scale)


def modulated_deform_conv_forward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    ones: Tensor,
    offset: Tensor,
    mask: Tensor,
    output: Tensor,
    columns: Tensor,
    kernel_h: int,
    kernel_w: int,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    group: int,
    deformable_group: int,
    with_bias: bool,
) -> None:
    """Version 2 (Zhu et al. 2019): `deform_conv_forward` with taps scaled by mask [B, G * kh * kw, h, w]."""
    geometry = (stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, group, deformable_group, True)
    tensors = _deform_conv(input, weight, offset, mask, bias if with_bias else None)
    output.copy_(torch.ops.torchvision.deform_conv2d(*tensors, *geometry))


def modulated_deform_conv_backward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    ones: Tensor,
    offset: Tensor,
    mask: Tensor,
    columns: Tensor,
    grad_input: Tensor,
    grad_weight: Tensor,
    grad_bias: Tensor,
    grad_offset: Tensor,
    grad_mask: Tensor,
    grad_output: Tensor,
    kernel_h: int,
    kernel_w: int,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    group: int,
    deformable_group: int,
    with_bias: bool,
) -> None:
    """Add the gradients of `modulated_deform_conv_forward` to the grad_* tensors; grad_bias only if `with_bias`."""
    geometry = (stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, group, deformable_group, True)
    tensors = _deform_conv(input, weight, offset, mask, bias if with_bias else None)
    grads = torch.ops.torchvision._deform_conv2d_backward(*_wide(grad_output), *tensors, *geometry)
    into = (grad_input, grad_weight, grad_offset, grad_mask) + ((grad_bias,) if with_bias else ())
    for tensor, grad in zip(into, grads):
        tensor.add_(grad)


# ---- multi-scale attention ----


def _deform_attention(value: Tensor, sizes: Tensor, starts: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
    """Differentiable body of `ms_deform_attn_forward`, level by level so that no level's samples outlive their sum."""
    batch, _, heads, dim = value.shape
    queries = locations.shape[1]
    output = value.new_zeros(batch * heads, dim, queries)
    for level, ((height, width), start) in enumerate(zip(sizes.tolist(), starts.tolist())):
        pixels = value[:, start : start + height * width].permute(0, 2, 3, 1)  # [B, heads, dim, h * w]
        pixels = pixels.reshape(batch * heads, dim, height, width)
        grid = 2 * locations[:, :, :, level].transpose(1, 2).flatten(0, 1) - 1  # [B * heads, Q, points, 2]
        sampled = F.grid_sample(pixels, grid, align_corners=False)  # [B * heads, dim, Q, points]
        attention = weights[:, :, :, level].transpose(1, 2).flatten(0, 1)[:, None]  # [B * heads, 1, Q, points]
        output = output + (sampled * attention).sum(-1)
    return output.view(batch, heads * dim, queries).transpose(1, 2)  # [B, Q, heads * dim]


def ms_deform_attn_forward(
    value: Tensor,
    value_spatial_shapes: Tensor,
    value_level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    im2col_step: int,
) -> Tensor:
    """Multi-scale deformable attention (Zhu et al. 2021, eq. 3): weighted bilinear samples [B, Q, heads * dim].

    value [B, sum of h * w, heads, dim]; value_spatial_shapes [levels, 2] (h, w); sampling_locations
    [B, Q, heads, levels, points, 2] (x, y) as shares of the map, zero outside; attention_weights
    [B, Q, heads, levels, points].
    """
    floats = _wide(value, sampling_locations, attention_weights)
    output = _deform_attention(floats[0], value_spatial_shapes, value_level_start_index, *floats[1:])
    return output.to(value.dtype).contiguous()


def ms_deform_attn_backward(
    value: Tensor,
    value_spatial_shapes: Tensor,
    value_level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    grad_output: Tensor,
    grad_value: Tensor,
    grad_sampling_loc: Tensor,
    grad_attn_weight: Tensor,
    im2col_step: int,
) -> None:
    """Add the gradients of `ms_deform_attn_forward` to the three grad_* tensors, by running it again under autograd."""
    floats = [t.detach().requires_grad_() for t in _wide(value, sampling_locations, attention_weights)]
    with torch.enable_grad():
        output = _deform_attention(floats[0], value_spatial_shapes, value_level_start_index, *floats[1:])
    grads = torch.autograd.grad(output, floats, *_wide(grad_output))
    for tensor, grad in zip((grad_value, grad_sampling_loc, grad_attn_weight), grads):
        tensor.add_(grad)


# ---- the table ----


def get_compiler_version() -> str:
    """What mmcv's environment report prints for the compiler of its ops."""
    return "n/a (stand-in of vitdense)"


get_compiling_cuda_version = get_compiler_version

OPS: dict[str, Callable] = {
    "bbox_overlaps": bbox_overlaps,
    "deform_conv_backward_input": deform_conv_backward_input,
    "deform_conv_backward_parameters": deform_conv_backward_parameters,
    "deform_conv_forward": deform_conv_forward,
    "get_compiler_version": get_compiler_version,
    "get_compiling_cuda_version": get_compiling_cuda_version,
    "modulated_deform_conv_backward": modulated_deform_conv_backward,
    "modulated_deform_conv_forward": modulated_deform_conv_forward,
    "ms_deform_attn_backward": ms_deform_attn_backward,
    "ms_deform_attn_forward": ms_deform_attn_forward,
    "nms": nms,
    "nms_match": nms_match,
    "roi_align_backward": roi_align_backward,
    "roi_align_forward": roi_align_forward,
    "roi_pool_backward": roi_pool_backward,
    "roi_pool_forward": roi_pool_forward,
    "sigmoid_focal_loss_backward": sigmoid_focal_loss_backward,
    "sigmoid_focal_loss_forward": sigmoid_focal_loss_forward,
    "softmax_focal_loss_backward": softmax_focal_loss_backward,
    "softmax_focal_loss_forward": softmax_focal_loss_forward,
    "softnms": softnms,
}
