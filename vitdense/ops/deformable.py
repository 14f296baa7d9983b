"""Deformable convolutions, versions 1 and 2, and multi-scale deformable attention."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from vitdense.errors import OptionError
from vitdense.layers.deformable import deform_attend, of_levels, pixels_of

try:
    import torchvision  # noqa: F401 registers its ops
except Exception as error:  # one that is built for another torch raises RuntimeError
    raise ImportError(
        f"mmcv._ext: no compiled one is in use, and the stand-in needs a torchvision that matches torch: "
        f"{type(error).__name__}: {error}; `python -m vitdense` says what to install"
    ) from error

# ---- deformable convolution ----
# B images, G deformable groups, kh x kw kernel, h x w output map.
# Offsets [B, 2 * G * kh * kw, h, w] are (y, x) pairs per deformable group and kernel position, as in torchvision.
# `sizes` are the keyword arguments of mmcv: kernel, stride, padding and others.


def widen(*tensors: Tensor) -> list[Tensor]:
    """The tensors in float32; float64 is unchanged. Some kernels of torchvision do not accept half types."""
    return [t if t.dtype == torch.float64 else t.float() for t in tensors]


def _arguments(
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    sizes: Mapping[str, int],
    modulation: tuple[Tensor, Tensor, torch.Size] | None = None,
) -> list:
    """The arguments of torchvision's op. `modulation` is given for version 2: mask, bias and size of the output map."""
    if modulation is None:
        names = ("dH", "dW", "padH", "padW", "dilationH", "dilationW", "group", "deformable_group")
        mask, bias = input.new_zeros(len(input), 1), input.new_zeros(len(weight))
    else:
        names = ("stride_h", "stride_w", "pad_h", "pad_w", "dilation_h", "dilation_w", "group", "deformable_group")
        taps = sizes["deformable_group"] * sizes["kernel_h"] * sizes["kernel_w"]
        mask, bias, size = modulation
        offset, mask = _as_output_map("offset", offset, 2 * taps, size), _as_output_map("mask", mask, taps, size)
        bias = bias if sizes["with_bias"] else input.new_zeros(len(weight))
    tensors = widen(input, weight, offset, mask, bias)
    return [*tensors, *(sizes[name] for name in names), modulation is not None]


def _none_at_the_border(grad: Tensor, arguments: Sequence) -> Tensor:
    """The gradient of offsets [B, 2 * G * kh * kw, h, w], 0 for samples in row or column -1, as in the compiled op.

    torchvision returns the one-sided slope there instead. Training starts with offsets of 0, which put the samples of
    the padding at these places.
    """
    _, weight, offset, _, _, *geometry = arguments
    kernel, outside = weight.shape[2:], []
    for axis, (size, taps) in enumerate(zip(offset.shape[2:], kernel)):
        stride, padding, dilation = geometry[axis], geometry[2 + axis], geometry[4 + axis]
        cells = torch.arange(size, device=offset.device) * stride - padding  # [h] or [w]
        place = cells + torch.arange(taps, device=offset.device)[:, None] * dilation  # [kh, h] or [kw, w]
        place = place[:, None, :, None] if axis == 0 else place[None, :, None]  # [kh or 1, kw or 1, h or 1, w or 1]
        own = offset.unflatten(1, (-1, *kernel, 2))[..., axis, :, :]  # [B, G, kh, kw, h, w]
        outside.append(place + own.to(grad.dtype) == -1)
    return grad.masked_fill(torch.stack(outside, 4).flatten(1, 4), 0)  # [B, 2 * G * kh * kw, h, w]


def deform_conv_forward(
    input: Tensor, weight: Tensor, offset: Tensor, output: Tensor, columns: Tensor, ones: Tensor, **sizes: int
) -> None:
    """Deformable convolution (Dai et al. 2017): input [B, C, H, W], weight [O, C / group, kH, kW] -> [B, O, h, w]."""
    output.copy_(torch.ops.torchvision.deform_conv2d(*_arguments(input, weight, offset, sizes)))


def deform_conv_backward_input(
    input: Tensor,
    offset: Tensor,
    gradOutput: Tensor,
    gradInput: Tensor,
    gradOffset: Tensor,
    weight: Tensor,
    columns: Tensor,
    **sizes: int,
) -> None:
    """Add the gradients of `deform_conv_forward` to gradInput and gradOffset, shaped as input and offset."""
    arguments = _arguments(input, weight, offset, sizes)
    grads = torch.ops.torchvision._deform_conv2d_backward(*widen(gradOutput), *arguments)
    gradInput.add_(grads[0])
    gradOffset.add_(_none_at_the_border(grads[2], arguments))


def deform_conv_backward_parameters(
    input: Tensor,
    offset: Tensor,
    gradOutput: Tensor,
    gradWeight: Tensor,
    columns: Tensor,
    ones: Tensor,
    scale: float,
    **sizes: int,
) -> None:
    """Add `scale` times the gradient of `deform_conv_forward` to gradWeight, which has the weight's shape."""
    # torchvision computes all gradients at once. This one does not depend on the weight, hence zeros.
    arguments = _arguments(input, torch.zeros_like(gradWeight), offset, sizes)
    grads = torch.ops.torchvision._deform_conv2d_backward(*widen(gradOutput), *arguments)
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
    **sizes: int,
) -> None:
    """Version 2 (Zhu et al. 2019): `deform_conv_forward` with samples multiplied by mask [B, G * kh * kw, h, w].

    Offset and mask may have a larger map than the output: see `_as_output_map`.
    """
    arguments = _arguments(input, weight, offset, sizes, (mask, bias, output.shape[2:]))
    output.copy_(torch.ops.torchvision.deform_conv2d(*arguments))


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
    **sizes: int,
) -> None:
    """Add the gradients of `modulated_deform_conv_forward` to the grad_* tensors; grad_bias only if ``with_bias``."""
    arguments = _arguments(input, weight, offset, sizes, (mask, bias, grad_output.shape[2:]))
    grads = torch.ops.torchvision._deform_conv2d_backward(*widen(grad_output), *arguments)
    grad_input.add_(grads[0])
    grad_weight.add_(grads[1])
    _add_to_first_values(grad_offset, _none_at_the_border(grads[2], arguments))
    _add_to_first_values(grad_mask, grads[3])
    if sizes["with_bias"]:
        grad_bias.add_(grads[4])


def _as_output_map(name: str, tensor: Tensor, channels: int, size: torch.Size) -> Tensor:
    """The first values of each image of `tensor` [B, channels, H, W] as [B, channels, *size].

    This is `tensor` itself if it has the size of the output. DyHead and GLIP also pass larger offsets and masks. The
    compiled op does not crop or resize them: it reads the buffer of each image from its start as if it had the size of
    the output. Published detectors were trained so. "First" refers to [channels, H, W] order, in any memory format.
    """
    if tensor.shape[1] != channels or tensor.shape[2:].numel() < size.numel():
        raise OptionError(
            f"modulated deformable convolution: {name} has shape {tuple(tensor.shape)}, expected {channels} channels "
            f"and at least the {size[0]} x {size[1]} positions of the output; compute it from a larger map"
        )
    return tensor.flatten(1)[:, : channels * size.numel()].unflatten(1, (channels, *size))


def _add_to_first_values(total: Tensor, grad: Tensor) -> None:
    rest = total.shape[1:].numel() - grad.shape[1:].numel()
    total.add_(F.pad(grad.flatten(1), (0, rest)).view(total.shape))


# ---- multi-scale deformable attention ----
# value [B, sum of h * w, heads, dim]; value_spatial_shapes [levels, 2] (h, w); value_level_start_index [levels];
# sampling_locations [B, Q, heads, levels, points, 2] (x, y) in 0..1 of the map, zero outside; attention_weights
# [B, Q, heads, levels, points].

BILINEAR = (0, 0, False)  # mode, zeros outside and align_corners, as aten numbers them

# Sizes that were read from the device: value_spatial_shapes to (its version, value_level_start_index, its version,
# rows of `_levels`).
_READ = WeakIdKeyDictionary()


def _levels(shapes: Tensor, starts: Tensor) -> list[tuple[int, int, int]]:
    """Height, width and first position of every level.

    The host needs them for the shapes of tensors, and mmdet has them on the device only. Reading them waits for the
    device, so it happens once for a pair of tensors, which all layers and their backward passes share. It happens every
    time for tensors without a version, that is in inference mode and while compiling.
    """
    has_version = not (shapes.is_inference() or starts.is_inference() or torch.compiler.is_compiling())
    if has_version:
        version, known, known_version, rows = _READ.get(shapes, (None,) * 4)
        if (version, known_version) == (shapes._version, starts._version) and known is starts:
            return rows
    rows = [tuple(row) for row in torch.cat([shapes, starts[:, None]], dim=1).tolist()]
    if has_version:
        _READ[shapes] = shapes._version, starts, starts._version, rows
    return rows


def _maps(value: Tensor, levels: Sequence[tuple[int, int, int]]) -> list[Tensor]:
    return [value[:, start : start + h * w].unflatten(1, (h, w)) for h, w, start in levels]


def ms_deform_attn_forward(
    value: Tensor,
    value_spatial_shapes: Tensor,
    value_level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    im2col_step: int,
) -> Tensor:
    """Multi-scale deformable attention (Zhu et al. 2021, eq. 3): weighted bilinear samples [B, Q, heads * dim]."""
    values, locations, weights = widen(value, sampling_locations, attention_weights)
    maps = _maps(values, _levels(value_spatial_shapes, value_level_start_index))
    return deform_attend(maps, 2 * locations - 1, weights).to(value.dtype).contiguous()  # [B, Q, heads * dim]


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
    """Add the gradients of `ms_deform_attn_forward` to the three grad_* tensors.

    The gradient of a weight is its sample times the gradient of the output. Samples, [B * heads, dim, Q, points] of
    every level, are taken again, one level after the other, as the compiled kernel does: to keep them would take 16 KiB
    for a query of 256 channels with four levels and points, 347 MiB in every layer of an encoder of 800 x 1333 pixels.
    """
    values, locations, weights, grad = widen(value, sampling_locations, attention_weights, grad_output)
    levels = _levels(value_spatial_shapes, value_level_start_index)
    batch, _, heads, _ = value.shape
    grad = grad.unflatten(2, (heads, -1)).permute(0, 2, 3, 1).flatten(0, 1)[..., None]  # [B * heads, dim, Q, 1]
    parts = zip(levels, _maps(values, levels), *of_levels(2 * locations - 1, weights))
    for i, ((h, w, start), level, points, weight) in enumerate(parts):
        pixels = pixels_of(level, points.dtype)  # [B * heads, dim, h, w]
        sampled = F.grid_sample(pixels, points, align_corners=False)  # [B * heads, dim, Q, points]
        of_weight = (sampled * grad).sum(1)  # [B * heads, Q, points]
        of_pixels, of_points = torch.ops.aten.grid_sampler_2d_backward(
            weight * grad, pixels, points, *BILINEAR, (True, True)
        )  # [B * heads, dim, h, w], [B * heads, Q, points, 2]
        of_value = of_pixels.unflatten(0, (batch, heads)).flatten(3).permute(0, 3, 1, 2)  # [B, h * w, heads, dim]
        grad_value[:, start : start + h * w].add_(of_value)
        grad_sampling_loc[:, :, :, i].add_(of_points.unflatten(0, (batch, heads)).transpose(1, 2), alpha=2)
        grad_attn_weight[:, :, :, i].add_(of_weight.unflatten(0, (batch, heads)).transpose(1, 2))
