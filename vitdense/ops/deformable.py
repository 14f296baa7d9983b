"""Deformable convolutions, versions 1 and 2, and multi-scale deformable attention."""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitdense.layers.deformable import deform_attend
from vitdense.ops.dtypes import widen

# ---- deformable convolution ----
# B images, G deformable groups, kh x kw kernel, h x w output map.
# Offsets [B, 2 * G * kh * kw, h, w] are (y, x) pairs per deformable group and kernel position, as in torchvision.


def _deform_conv(
    input: Tensor, weight: Tensor, offset: Tensor, mask: Tensor | None = None, bias: Tensor | None = None
) -> list[Tensor]:
    """The tensor arguments of torchvision's op; version 1 has neither mask nor bias."""
    mask = input.new_zeros(len(input), 1) if mask is None else mask
    bias = input.new_zeros(len(weight)) if bias is None else bias
    return widen(input, weight, offset, mask, bias)


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
    grads = torch.ops.torchvision._deform_conv2d_backward(*widen(gradOutput), *tensors, *geometry)
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
    # torchvision computes all gradients at once. This one does not depend on the weight, hence zeros.
    geometry = (dH, dW, padH, padW, dilationH, dilationW, group, deformable_group, False)
    tensors = _deform_conv(input, torch.zeros_like(gradWeight), offset)
    grads = torch.ops.torchvision._deform_conv2d_backward(*widen(gradOutput), *tensors, *geometry)
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
    """Version 2 (Zhu et al. 2019): `deform_conv_forward` with samples multiplied by mask [B, G * kh * kw, h, w].

    Offset and mask may have a larger map than the output: see `_as_output_map`.
    """
    geometry = (stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, group, deformable_group, True)
    taps, size = deformable_group * kernel_h * kernel_w, output.shape[2:]
    offset, mask = _as_output_map("offset", offset, 2 * taps, size), _as_output_map("mask", mask, taps, size)
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
    taps, size = deformable_group * kernel_h * kernel_w, grad_output.shape[2:]
    offset, mask = _as_output_map("offset", offset, 2 * taps, size), _as_output_map("mask", mask, taps, size)
    tensors = _deform_conv(input, weight, offset, mask, bias if with_bias else None)
    grads = torch.ops.torchvision._deform_conv2d_backward(*widen(grad_output), *tensors, *geometry)
    grad_input.add_(grads[0])
    grad_weight.add_(grads[1])
    _add_to_first_values(grad_offset, grads[2])
    _add_to_first_values(grad_mask, grads[3])
    if with_bias:
        grad_bias.add_(grads[4])


def _as_output_map(name: str, tensor: Tensor, channels: int, size: torch.Size) -> Tensor:
    """The first values of each image of `tensor` [B, channels, H, W] as [B, channels, *size].

    This is `tensor` itself if it has the size of the output. DyHead and GLIP also pass larger offsets and masks. The
    compiled op does not crop or resize them: it reads the buffer of each image from its start as if it had the size of
    the output. Published detectors were trained so. "First" refers to [channels, H, W] order, in any memory format.
    """
    if tensor.shape[1] != channels or tensor.shape[2:].numel() < size.numel():
        raise ValueError(
            f"modulated deformable convolution: {name} has shape {tuple(tensor.shape)}, expected {channels} channels "
            f"and at least the {size[0]} x {size[1]} positions of the output; compute it from a larger map"
        )
    return tensor.flatten(1)[:, : channels * size.numel()].unflatten(1, (channels, *size))


def _add_to_first_values(total: Tensor, grad: Tensor) -> None:
    """Backward of `_as_output_map`: add grad [B, channels, *size] to the first values of each image of total."""
    rest = total.shape[1:].numel() - grad.shape[1:].numel()
    total.add_(F.pad(grad.flatten(1), (0, rest)).view(total.shape))


# ---- multi-scale deformable attention ----


def _deform_attention(value: Tensor, sizes: Tensor, starts: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
    """Differentiable `ms_deform_attn_forward`."""
    levels = [
        value[:, start : start + height * width].unflatten(1, (height, width))  # [B, h, w, heads, dim]
        for (height, width), start in zip(sizes.tolist(), starts.tolist())
    ]
    return deform_attend(levels, 2 * locations - 1, weights)  # [B, Q, heads * dim]


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
    [B, Q, heads, levels, points, 2] (x, y) in 0..1 of the map, zero outside; attention_weights
    [B, Q, heads, levels, points].
    """
    floats = widen(value, sampling_locations, attention_weights)
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
    """Add the gradients of `ms_deform_attn_forward` to the three grad_* tensors; recomputes it under autograd."""
    floats = [t.detach().requires_grad_() for t in widen(value, sampling_locations, attention_weights)]
    with torch.enable_grad():
        output = _deform_attention(floats[0], value_spatial_shapes, value_level_start_index, *floats[1:])
    grads = torch.autograd.grad(output, floats, *widen(grad_output))
    for tensor, grad in zip((grad_value, grad_sampling_loc, grad_attn_weight), grads):
        tensor.add_(grad)
