"""The one attention primitive of the project, and its forms for windows and for decomposed biases."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import Function, FunctionCtx, once_differentiable

from vitdense.layers.layout import folded_length, relative_layout, without_autocast

# Elements of a decomposed bias in memory at a time, on a CPU: 32 MiB in float32. As fast as all at once, without the
# memory peak.
BIAS_ELEMENTS = 2**23


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, scale: float | None = None) -> Tensor:
    """Softmax attention with an additive bias: ``softmax(scale * q k^T + bias) v``.

    Args:
        q: Queries, ``[B, heads, Nq, d]``.
        k: Keys, ``[B, heads, Nk, d]``.
        v: Values, ``[B, heads, Nk, dv]``.
        bias: Added to the logits; broadcastable to ``[B, heads, Nq, Nk]``. Cast to the dtype of ``q``. Columns after
            the first Nk are ignored: with them, rows can start at multiples of `layout.ALIGNMENT`.
        scale: Factor on the logits; ``d ** -0.5`` when None.

    Returns:
        ``[B, heads, Nq, dv]`` in the dtype of ``v``.
    """
    if bias is None:
        return F.scaled_dot_product_attention(q, k, v, scale=scale)
    bias = bias.to(q.dtype)[..., : k.shape[-2]]  # [..., Nq, Nk]
    if q.device.type == "cpu" and bias.requires_grad:
        # No fused CPU kernel has a gradient for the bias. torch's composite one takes 1.4x the time of these lines in
        # the forward pass (1392 windows of 49 tokens): it scales queries and keys separately.
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        logits = (q if scale == 1 else q * scale) @ k.transpose(-2, -1)  # [B, heads, Nq, Nk]
        return logits.add_(bias).softmax(-1) @ v  # [B, heads, Nq, dv]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)


def attend_windows(
    qkv: Tensor,
    bias: Tensor | None = None,
    masked_bias: Tensor | None = None,
    num_plain: int = 0,
    scale: float | None = None,
) -> Tensor:
    """Attention in windows, of which the last may have a mask.

    Windows without and with a mask attend apart, so that all of the former share one bias: the sum of bias and mask of
    all windows is as large as the attention matrix.

    Args:
        qkv: Queries, keys and values, ``[n, N, 3, heads, d]``.
        bias: ``[heads, N, N]``, or None.
        masked_bias: Sum of bias and mask of the windows after `num_plain`, ``[n - num_plain, heads or 1, N, N]``; None
            without masks. While a model is compiled, of the windows of an image: all are after `num_plain`.
        num_plain: Windows without a mask.
        scale: Factor on the logits; ``d ** -0.5`` when None.

    Returns:
        ``[n, N, heads d]``.
    """
    if masked_bias is None or num_plain == 0:
        bias = bias if masked_bias is None else masked_bias
        body = attend if masked_bias is None or not torch.compiler.is_compiling() else _attend_images
        return _to_tokens(body(*(x.transpose(1, 2) for x in qkv.unbind(2)), bias, scale))  # [n, N, heads*d]
    parts = _SplitWindows.apply(qkv, num_plain)  # [num_plain, heads, N, d] and [n - num_plain, heads, N, d], three each
    outs = attend(*parts[:3], bias, scale), attend(*parts[3:], masked_bias, scale)
    return torch.cat([_to_tokens(out) for out in outs])  # [n, N, heads*d]


def _attend_images(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float | None) -> Tensor:
    """`attend` with the biases of the windows of an image, ``[nW, heads or 1, N, N]``, for all images.

    Windows become heads, so that the biases are not repeated for every image. This copies queries, keys and values,
    which a compiler avoids.
    """
    n, heads, tokens, _ = q.shape
    num_windows = bias.shape[0]
    q, k, v = (x.reshape(n // num_windows, num_windows * heads, tokens, -1) for x in (q, k, v))  # [B, nW*heads, N, d]
    bias = bias.expand(-1, heads, -1, -1).reshape(1, num_windows * heads, tokens, tokens)
    return attend(q, k, v, bias, scale).reshape(n, heads, tokens, -1)  # [n, heads, N, d]


def _to_tokens(x: Tensor) -> Tensor:
    """``[B, heads, N, d]`` to ``[B, N, heads d]``: a view of what fused attention returns."""
    return x.transpose(1, 2).flatten(2)  # [B, N, heads*d]


class _SplitWindows(Function):
    """Queries, keys and values of the first and of the other windows, as views. Their gradients are written once;
    autograd's own would join queries, keys and values, then the windows."""

    @staticmethod
    def forward(ctx: FunctionCtx, qkv: Tensor, num_first: int) -> tuple[Tensor, ...]:
        ctx.num_first = num_first
        parts = (qkv[:num_first], qkv[num_first:])
        return tuple(x.transpose(1, 2) for part in parts for x in part.unbind(2))

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, None]:
        grads = [grad.transpose(1, 2) for grad in grads]  # [windows, N, heads, d]
        shape = (grads[0].shape[0] + grads[3].shape[0], grads[0].shape[1], 3, *grads[0].shape[2:])
        qkv = grads[0].new_empty(shape)  # [n, N, 3, heads, d]
        torch.stack(grads[:3], dim=2, out=qkv[: ctx.num_first])
        torch.stack(grads[3:], dim=2, out=qkv[ctx.num_first :])
        return qkv, None


def unit_length(qkv: Tensor, scale: Tensor) -> Tensor:
    """Queries and keys divided by their lengths, times a scale: scaled cosine attention (Swin V2, equation 2).

    Lengths are computed in float32 at least, where squares do not overflow; the map stays in its dtype. A query or key
    of length zero, such as the key of padding, stays zero and has no gradient.

    Args:
        qkv: Queries, keys and values, ``[n, 3 heads d]``. Changed in place, except while a model is compiled.
        scale: Of queries and keys, ``[2, heads]``, in float32 or wider.

    Returns:
        ``[n, 3 heads d]``.
    """
    if not torch.compiler.is_compiling():
        return _UnitLength.apply(qkv, scale)
    qk = _queries_and_keys(qkv, scale)  # [n, 2, heads, d]
    qk = (qk * _unit_factor(qk, scale)).to(qkv.dtype).flatten(1)  # [n, 2*heads*d]
    return torch.cat([qk, qkv[:, qk.shape[1] :]], dim=-1)  # [n, 3*heads*d]


def _queries_and_keys(qkv: Tensor, scale: Tensor) -> Tensor:
    """View ``[n, 2, heads, d]`` of ``[n, 3 heads d]``."""
    return qkv.unflatten(-1, (3, scale.shape[1], -1))[:, :2]  # [n, 2, heads, d]


def _unit_factor(qk: Tensor, scale: Tensor) -> Tensor:
    """Scale over length, ``[n, 2, heads, 1]``, of queries and keys ``[n, 2, heads, d]``."""
    with without_autocast(qk):
        length = torch.linalg.vector_norm(qk, dim=-1, keepdim=True, dtype=scale.dtype)  # [n, 2, heads, 1]
        return scale[..., None] / F.threshold(length, 1e-12, math.inf)  # the bound of F.normalize


class _UnitLength(Function):
    """`unit_length`, in place: what it keeps for the backward pass is what attention keeps."""

    @staticmethod
    def forward(ctx: FunctionCtx, qkv: Tensor, scale: Tensor) -> Tensor:
        qk = _queries_and_keys(qkv, scale)  # [n, 2, heads, d]
        factor = _unit_factor(qk, scale)  # [n, 2, heads, 1]
        qk.mul_(factor)
        ctx.mark_dirty(qkv)
        ctx.save_for_backward(qkv, scale, factor)
        return qkv

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor]:
        qkv, scale, factor = ctx.saved_tensors
        qk, grad_qk = (_queries_and_keys(x, scale) for x in (qkv, grad))  # [n, 2, heads, d]
        # Along a vector there is no gradient, except that of the scale.
        along = (qk * grad_qk).sum(-1, keepdim=True, dtype=scale.dtype)  # [n, 2, heads, 1]
        out = torch.empty_like(grad)  # [n, 3*heads*d]
        out_qk, values = _queries_and_keys(out, scale), slice(2 * grad.shape[1] // 3, None)
        torch.addcmul(grad_qk, qk, (along / scale.square()[..., None]).to(qk.dtype), value=-1, out=out_qk)
        out_qk.mul_(factor)
        out[:, values] = grad[:, values]
        return out, along.sum(0)[..., 0] / scale  # [n, 3*heads*d], [2, heads]


def attend_decomposed(
    q: Tensor, k: Tensor, v: Tensor, bias: Callable[..., tuple[Tensor, Tensor]], keys: tuple[int, int]
) -> Tensor:
    """Attention whose bias is a sum of a term of the key's row and one of its column (MViTv2 section 3.1).

    There are two exact forms. One adds the terms of all pairs, a bias as large as the attention matrix. The other folds
    them into longer queries and keys. Which moves fewer bytes depends on the sizes.

    Args:
        q: Queries, ``[B, h, w, heads, d]``.
        k: Keys, row-major, ``[B, h' w', heads, d]``.
        v: Values, ``[B, h' w', heads, d]``.
        bias: Makes the terms, see `DecomposedBias`.
        keys: Grid (h', w') of the keys in tokens.

    Returns:
        ``[B, h w, heads d]``.
    """
    (b, h, w, heads, dim), nk = q.shape, k.shape[1]
    scale = dim**-0.5  # on q k^T alone
    on_cpu = q.device.type == "cpu"
    if torch.compiler.is_compiling():  # no branch on sizes
        folds = True
    elif on_cpu and not torch.is_grad_enabled():
        folds = heads * h * w * nk > BIAS_ELEMENTS
    else:
        # What either form writes, and the fused kernel reads, more than the other. With gradients, a third more for the
        # sum: the gradient of all pairs is read once for each axis. Measured forms: docs/performance.md.
        pairs = h * w * nk * (4 if torch.is_grad_enabled() else 3) // 3
        folds = pairs > (h * w + (2 if on_cpu else 1) * nk) * folded_length(dim, keys)
    layout = relative_layout(q, keys, aligns_rows=not folds)
    # Codes are a power of two, which every dtype holds: with heads of 64 channels the rest of the factor is 1.
    along_h, along_w = bias(q, keys, layout, 1 / (scale * layout.code) if folds else 1.0)
    if folds:
        return _attend_folded(q, k, v, along_h, along_w, layout.codes, scale)
    terms = along_h[..., None], along_w[..., None, :]  # [B, h, w, heads, h'', 1], [B, h, w, heads, 1, w']
    whole = max(1, BIAS_ELEMENTS // (heads * h * w * nk)) if on_cpu and not torch.is_grad_enabled() else b
    parts = zip(*(x.split(whole) for x in (q, k, v, *terms)))
    outs = [_attend_added(*part, scale) for part in parts]
    return outs[0] if len(outs) == 1 else torch.cat(outs)  # [B, h*w, heads*d]


def _attend_added(q: Tensor, k: Tensor, v: Tensor, along_h: Tensor, along_w: Tensor, scale: float) -> Tensor:
    bias = (along_h + along_w).flatten(-2).flatten(1, 2)  # [B, h*w, heads, h''*w']
    q = q.flatten(1, 2)  # [B, h*w, heads, d]
    return _to_tokens(attend(*(x.transpose(1, 2) for x in (q, k, v, bias)), scale=scale))  # [B, h*w, heads*d]


def _attend_folded(
    q: Tensor, k: Tensor, v: Tensor, along_h: Tensor, along_w: Tensor, codes: Tensor, scale: float
) -> Tensor:
    """The bias as more channels: terms for the query, one-hot codes of row and column for the key."""
    parts = [q, along_h, along_w]
    if not torch.compiler.is_compiling():  # see `folded_length`
        parts.append(q[..., : codes.shape[1] - along_h.shape[-1] - along_w.shape[-1]])  # codes there are zero
    q = torch.cat(parts, dim=-1).flatten(1, 2)  # [B, h*w, heads, align(d + h' + w')]
    codes = codes[:, None].expand(k.shape[0], -1, k.shape[2], -1)  # [B, h'*w', heads, align(d + h' + w') - d]
    k = torch.cat([k, codes], dim=-1)  # [B, h'*w', heads, align(d + h' + w')]
    dim = v.shape[-1]
    if v.device.type == "cpu":  # its fused kernel wants values as long as keys
        v = F.pad(v, (0, k.shape[-1] - dim))  # [B, h'*w', heads, align(d + h' + w')]
    y = attend(*(x.transpose(1, 2) for x in (q, k, v)), scale=scale)  # [B, heads, h*w, d or more]
    return _to_tokens(y[..., :dim])  # [B, h*w, heads*d]
