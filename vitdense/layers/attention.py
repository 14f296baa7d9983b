"""The attention primitive of the project, and its forms for windows and decomposed biases."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import Function, FunctionCtx

from vitdense.layers.layout import (
    ALIGNMENT,
    Windows,
    align,
    allows_own_gradients,
    is_traced,
    one_hot,
    without_autocast,
    zero,
)
from vitdense.layers.onednn import multiplies_bfloat16

# Elements of logits or of a decomposed bias in memory at a time, on a CPU: 32 MiB in float32. This is as fast as all at
# once, without the memory peak.
BIAS_ELEMENTS = 2**23
FLASH_CHANNELS = 256  # most channels of a head in flash attention
LANES = 32  # bfloat16 numbers in a vector of AVX-512
# Least logits for which products are faster than the fused kernel, despite more kernel calls.
SMALLEST_LOGITS = 2**16


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, scale: float | None = None) -> Tensor:
    """Softmax attention with an additive bias: ``softmax(scale * q k^T + bias) v``.

    Args:
        q: Queries, ``[B, heads, Nq, d]``.
        k: Keys, ``[B, heads, Nk, d]``.
        v: Values, ``[B, heads, Nk, dv]``.
        bias: Added to the logits; broadcastable to ``[B, heads, Nq, Nk]``. Cast to the dtype of ``q``. Columns after
            the first Nk are ignored, so that rows can start at multiples of `layout.ALIGNMENT`. A bool bias is True for
            pairs that may attend.
        scale: Factor on the logits; ``d ** -0.5`` when None.

    Returns:
        ``[B, heads, Nq, dv]`` in the dtype of ``v``.
    """
    if _by_products(q, k, bias):
        return _attend_by_products(q, k, v, bias, q.shape[-1] ** -0.5 if scale is None else scale)
    if bias is None:
        return _fused(q, k, v, None, scale)
    bias = (bias if bias.dtype == torch.bool else bias.to(q.dtype))[..., : k.shape[-2]]  # [..., Nq, Nk]
    if bias.ndim == 3:
        bias = bias[None]  # [1, heads, Nq, Nk]: torch's fused kernel of a CPU takes no other
    return _fused(q, k, v, bias, scale)


def _fused(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float | None) -> Tensor:
    """torch's fused attention; on a GPU flash attention, or with a bias the memory-efficient one.

    cuDNN's, which torch prefers on an H100 or H200, is switched off for the process by the first attention on a GPU. It
    compiles a kernel for every shape, which takes Swin-T 0.2 s and MViTv2-T 5 s for the first pass of a size, and is
    slower for windows with a bias. With few sizes, choose it by `torch.nn.attention.sdpa_kernel` without flash
    attention.
    """
    if q.is_cuda:
        prefer_flash()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)


def prefer_flash() -> bool:
    """Switch off cuDNN's attention for this process if flash attention is on. Returns whether it was switched.

    It is not restored after a call, which would affect what other threads compute meanwhile.
    """
    takes_cudnn = torch.backends.cuda.flash_sdp_enabled() and torch.backends.cuda.cudnn_sdp_enabled()
    if takes_cudnn:
        torch.backends.cuda.enable_cudnn_sdp(False)
    return takes_cudnn


# A compiler cannot trace the switch. `torch.compiler.assume_constant_result` sets the same attribute, but takes two
# seconds to import the compiler.
prefer_flash._dynamo_marked_constant = True


def _by_products(q: Tensor, k: Tensor, bias: Tensor | None = None) -> bool:
    """Whether `attend` uses `_attend_by_products`: in bfloat16 on a CPU, without gradients.

    One thread of an AMD EPYC with AVX-512 takes 50 ms by products and 57 by torch's fused kernel for 4176 windows of 49
    tokens, and 88 and 119 for 12 heads of 1601 tokens. In float32 the fused kernel is faster.
    """
    return (
        q.device.type == "cpu"
        and q.dtype == torch.bfloat16
        and not torch.is_grad_enabled()
        and not is_traced()
        and not torch._C._are_functorch_transforms_active()
        and (bias is None or bias.dtype != torch.bool)  # the fused kernel returns zeros for rows without a pair
        and q.shape[:-1].numel() * k.shape[-2] >= SMALLEST_LOGITS
        and multiplies_bfloat16()
    )


def _attend_by_products(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """`attend` by two batched products. Keys are padded to whole vectors, which makes the softmax twice as fast."""
    (b, heads, nq, _), nk = q.shape, k.shape[-2]
    width = (nk + LANES - 1) // LANES * LANES
    k, v = (F.pad(x, (0, 0, 0, width - nk)) for x in (k, v))  # [B, heads, width, d or dv]
    if bias is not None:
        bias = F.pad(bias[..., :nk].expand(*bias.shape[:-1], nk), (0, width - nk), value=-math.inf)  # [..., Nq, width]
        bias = bias.expand(b, heads, nq, width)
    images = max(1, BIAS_ELEMENTS // (heads * nq * width))  # at a time
    rows = max(LANES, BIAS_ELEMENTS // (heads * width)) if images == 1 else nq
    out = v.new_empty(b, nq, heads, v.shape[-1]).transpose(1, 2)  # [B, heads, Nq, dv], laid out as from fused attention
    for i in range(0, b, images):
        keys, values = (x[i : i + images].flatten(0, 1) for x in (k, v))  # [n*heads, width, d or dv]
        for j in range(0, nq, rows):
            part = slice(i, i + images), slice(None), slice(j, j + rows)
            queries = q[part]  # [n, heads, rows, d]
            logits = q.new_empty(*queries.shape[:-1], width)  # [n, heads, rows, width]
            if bias is not None:
                logits.copy_(bias[part])
            logits = logits.flatten(0, 1)  # [n*heads, rows, width]
            logits.baddbmm_(queries.flatten(0, 1), keys.transpose(1, 2), beta=int(bias is not None), alpha=scale)
            if bias is None:
                logits[..., nk:] = -math.inf
            out[part] = (logits.softmax(-1) @ values).unflatten(0, (-1, heads))
    return out


def attend_windows(
    qkv: Tensor, bias: Tensor | None = None, windows: Windows | None = None, scale: float | None = None
) -> Tensor:
    """Attention in windows; the last windows may have a mask: ``[n, N, heads d]``.

    Windows with and without a mask are computed separately, so that all windows without a mask share one bias.

    Args:
        qkv: Queries, keys and values, ``[n, N, 3, heads, d]``.
        bias: ``[heads, N, align(N)]``, or None; columns after the first N are ignored.
        windows: The layout with the masks; None for no masks.
        scale: Factor on the logits; ``d ** -0.5`` when None.
    """
    if windows is None or windows.mask is None:
        return _to_tokens(attend(*_heads(qkv), bias, scale))  # [n, N, heads*d]
    masked = masked_bias(bias, windows)  # [windows with a mask, heads or 1, N, align(N)]
    if torch.compiler.is_compiling():
        return _to_tokens(_attend_images(*_heads(qkv), masked, scale))  # [n, N, heads*d]
    if windows.num_plain == 0:
        return _to_tokens(attend(*_heads(qkv), masked, scale))  # [n, N, heads*d]
    parts = zip(qkv.split((windows.num_plain, len(qkv) - windows.num_plain)), (bias, masked))
    return torch.cat([_to_tokens(attend(*_heads(part), of_part, scale)) for part, of_part in parts])  # [n, N, heads*d]


def masked_bias(bias: Tensor | None, windows: Windows) -> Tensor:
    """The sum of a bias ``[heads, N, align(N)]``, or None, and the masks: ``[masked, heads or 1, N, align(N)]``.

    There is one for every window with a mask; while compiling, for the windows of one image.
    """
    return (windows.mask if bias is None else windows.mask + bias).flatten(0, 1)


def _heads(qkv: Tensor) -> list[Tensor]:
    return [x.transpose(1, 2) for x in qkv.unbind(2)]  # [n, heads, N, d] each


def _attend_images(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float | None) -> Tensor:
    """`attend` with the biases of the windows of an image, ``[nW, heads or 1, N, align(N)]``, for all images.

    Windows become heads, so that biases are not repeated for every image. In eager mode this copies queries, keys and
    values.
    """
    n, heads, tokens, _ = q.shape
    num_windows = bias.shape[0]
    if type(n) is int and n == num_windows:  # one image; OpenVINO would add a transpose without a reshape
        return attend(q, k, v, bias, scale)  # [n, heads, N, d]
    q, k, v = (x.reshape(n // num_windows, num_windows * heads, tokens, -1) for x in (q, k, v))  # [B, nW*heads, N, d]
    bias = bias.expand(-1, heads, -1, -1).reshape(1, num_windows * heads, tokens, -1)  # [1, nW*heads, N, align(N)]
    return attend(q, k, v, bias, scale).reshape(n, heads, tokens, -1)  # [n, heads, N, d]


def _to_tokens(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)  # [B, N, heads*d]


def unit_length(qkv: Tensor, scale: Tensor) -> Tensor:
    """Queries and keys divided by their lengths, times a scale: scaled cosine attention (Swin V2, equation 2).

    Lengths are computed in at least float32, where squares do not overflow; the map keeps its dtype. A query or key of
    length zero, such as the key of padding, stays zero and has no gradient. `qkv`, ``[n, 3 heads d]``, is changed in
    place, unless it is a view or a model is compiled. `scale`, ``[2, heads]`` for queries and keys, is in float32 or
    wider.
    """
    # A view, such as the result of a low-rank update, cannot be changed in place by a function with two results.
    if allows_own_gradients() and not qkv._is_view():
        return _UnitLength.apply(qkv, scale)[0]
    qk = _queries_and_keys(qkv, scale)  # [n, 2, heads, d]
    return _with_values((qk * _unit_factor(qk, scale)).to(qkv.dtype), qkv)  # [n, 3*heads*d]


def _queries_and_keys(qkv: Tensor, scale: Tensor) -> Tensor:
    return qkv.unflatten(-1, (3, scale.shape[1], -1))[:, :2]  # [n, 2, heads, d]


def _with_values(qk: Tensor, qkv: Tensor) -> Tensor:
    """Queries and keys ``[n, 2, heads, d]`` and the values in ``[n, 3 heads d]``, joined: ``[n, 3 heads d]``."""
    qk = qk.flatten(1)  # [n, 2*heads*d]
    return torch.cat([qk, qkv[:, qk.shape[1] :]], dim=1)  # [n, 3*heads*d]


def _unit_factor(qk: Tensor, scale: Tensor) -> Tensor:
    """Scale over length, ``[n, 2, heads, 1]``, of queries and keys ``[n, 2, heads, d]``."""
    with without_autocast(qk):
        length = torch.linalg.vector_norm(qk, dim=-1, keepdim=True, dtype=scale.dtype)  # [n, 2, heads, 1]
        return scale[..., None] / F.threshold(length, 1e-12, math.inf)  # the bound of F.normalize


class _UnitLength(Function):
    """`unit_length` in place: the backward pass needs only tensors that attention keeps anyway.

    The factor is a second result, so that second derivatives know that it depends on both inputs.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, qkv: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        qk = _queries_and_keys(qkv, scale)  # [n, 2, heads, d]
        factor = _unit_factor(qk, scale)  # [n, 2, heads, 1]
        qk.mul_(factor)
        ctx.mark_dirty(qkv)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(qkv, scale, factor)
        return qkv, factor

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor, grad_factor: Tensor | None) -> tuple[Tensor, Tensor]:
        qkv, scale, factor = ctx.saved_tensors
        qk, grad_qk = (_queries_and_keys(x, scale) for x in (qkv, grad))  # [n, 2, heads, d]
        # Along a vector there is no gradient, except the one of the scale.
        along = (qk * grad_qk).sum(-1, keepdim=True, dtype=scale.dtype)  # [n, 2, heads, 1]
        if grad_factor is not None:  # only in a second derivative: the factor depends on the length
            along = along + factor * grad_factor
        grad_qk = torch.addcmul(grad_qk, qk, (along / scale.square()[..., None]).to(qk.dtype), value=-1).mul_(factor)
        return _with_values(grad_qk, grad), along.sum(0)[..., 0] / scale  # [n, 3*heads*d], [2, heads]


def attend_decomposed(
    q: Tensor, k: Tensor, v: Tensor, bias: Callable[..., tuple[Tensor, Tensor]], keys: tuple[int, int]
) -> Tensor:
    """Attention with a bias that is the sum of a term for the key's row and one for its column (MViTv2 section 3.1).

    There are two exact forms. One adds the terms for all pairs, a bias as large as the attention matrix. The other
    folds them into longer queries and keys. The form that moves fewer bytes for these sizes is chosen. Both return
    ``[B, h w, heads d]``.

    Args:
        q: Queries, ``[B, h, w, heads, d]``.
        k: Keys, row-major, ``[B, h' w', heads, d]``.
        v: Values, ``[B, h' w', heads, d]``.
        bias: Makes the terms, see `DecomposedBias`.
        keys: Grid (h', w') of the keys in tokens.
    """
    (b, h, w, heads, dim), nk = q.shape, k.shape[1]
    scale = dim**-0.5  # only of q k^T
    on_cpu = q.device.type == "cpu"
    if torch.compiler.is_compiling():  # no branch on sizes
        folds = True
    elif on_cpu and not torch.is_grad_enabled():
        folds = False  # takes up to 1.6 times as long
    else:
        # The bytes that each form writes, and the fused kernel reads, in addition. With gradients the sum costs a third
        # more: the gradient of all pairs is read once per axis. Measured forms: CONTRIBUTING.md.
        pairs = h * w * nk * (4 if torch.is_grad_enabled() else 3) // 3
        folds = pairs > (h * w + (2 if on_cpu else 1) * nk) * folded_length(dim, keys)
    if folds:
        return _attend_folded(q, k, v, bias, keys, scale)
    step = ALIGNMENT // math.gcd(ALIGNMENT, keys[1])  # rows of keys that are a multiple of ALIGNMENT
    along_h, along_w = bias(q, keys, (keys[0] + step - 1) // step * step)
    terms = along_h[..., None], along_w[..., None, :]  # [B, h, w, heads, h'', 1], [B, h, w, heads, 1, w']
    if not on_cpu or torch.is_grad_enabled() or b * heads * h * w * nk <= BIAS_ELEMENTS:
        return _attend_added(q, k, v, *terms, scale)  # [B, h*w, heads*d]
    images, rows = (max(1, BIAS_ELEMENTS // (heads * queries * nk)) for queries in (h * w, w))  # at a time
    out = v.new_empty(b, h, w, heads * v.shape[-1])  # [B, h, w, heads*d]
    for i in range(0, b, images):
        for j in range(0, h, rows):
            some, part = slice(i, i + images), (slice(i, i + images), slice(j, j + rows))
            y = _attend_added(q[part], k[some], v[some], *(term[part] for term in terms), scale)
            out[part] = y.unflatten(1, (-1, w))
    return out.flatten(1, 2)  # [B, h*w, heads*d]


def _attend_added(q: Tensor, k: Tensor, v: Tensor, along_h: Tensor, along_w: Tensor, scale: float) -> Tensor:
    bias = (along_h + along_w).flatten(-2).flatten(1, 2)  # [B, h*w, heads, h''*w']
    q = q.flatten(1, 2)  # [B, h*w, heads, d]
    return _to_tokens(attend(*(x.transpose(1, 2) for x in (q, k, v, bias)), scale=scale))  # [B, h*w, heads*d]


def _attend_folded(
    q: Tensor, k: Tensor, v: Tensor, bias: Callable[..., tuple[Tensor, Tensor]], keys: tuple[int, int], scale: float
) -> Tensor:
    """The bias as further channels: terms for the query, one-hot codes of row and column for the key."""
    b, *_, heads, dim = q.shape
    # Codes are a power of two, exact in every dtype. With 64 channels per head, the remaining factor is 1.
    code = 2.0 ** round(math.log2(dim) / 2)
    terms = bias(q, keys, None, 1 / (scale * code))  # [B, h, w, heads, h'], [B, h, w, heads, w']
    shape = (b, *keys, heads)
    of_row, of_column = (one_hot(k, n, code) for n in keys)  # [h', h'], [w', w']
    codes = [x.expand(*shape, -1) for x in (of_row[:, None, None], of_column[:, None])]  # [B, h', w', heads, h' or w']
    filling = folded_length(dim, keys) - dim - sum(keys)
    more = [zero(k).expand(*shape, filling)] if filling else []
    q = torch.cat([q, *terms, *(q[..., :filling] for _ in more)], dim=-1).flatten(1, 2)  # [B, h*w, heads, align(...)]
    k = torch.cat([k.unflatten(1, keys), *codes, *more], dim=-1).flatten(1, 2)  # [B, h'*w', heads, align(d + h' + w')]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # [B, heads, h*w or h'*w', align(d + h' + w') or d]
    dim = v.shape[-1]
    # The fused kernel of a CPU needs values as long as keys, and so does flash attention, which is in half precision.
    for_flash = v.dtype.itemsize == 2 and (torch.compiler.is_compiling() or k.shape[-1] <= FLASH_CHANNELS)
    if (v.device.type == "cpu" or for_flash) and not _by_products(q, k):
        v = F.pad(v, (0, k.shape[-1] - dim))  # [B, heads, h'*w', align(d + h' + w')]
    y = attend(q, k, v, scale=scale)  # [B, heads, h*w, d or more]
    return _to_tokens(y[..., :dim])  # [B, h*w, heads*d]


def folded_length(dim: int, keys: tuple[int, int]) -> int:
    """Channels of queries and keys with codes for a grid of keys (h', w'): ``d + h' + w'``, aligned if d is large."""
    length = dim + sum(keys)
    # Not aligned while compiling: the number of padding channels would be another size to compile for.
    return length if dim < ALIGNMENT or torch.compiler.is_compiling() else align(length)
