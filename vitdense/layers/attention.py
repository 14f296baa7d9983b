"""The one attention primitive of the project."""

import torch
import torch.nn.functional as F
from torch import Tensor

# Elements of a decomposed bias in memory at a time: 32 MiB in float32. As fast as all at once, without the memory peak.
BIAS_ELEMENTS = 2**23


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, scale: float | None = None) -> Tensor:
    """Softmax attention with an additive bias: ``softmax(scale * q k^T + bias) v``.

    Args:
        q: Queries, ``[B, heads, Nq, d]``.
        k: Keys, ``[B, heads, Nk, d]``.
        v: Values, ``[B, heads, Nk, dv]``.
        bias: Added to the logits; broadcastable to ``[B, heads, Nq, Nk]``. Cast to the dtype of ``q``.
        scale: Factor on the logits; ``d ** -0.5`` when None.

    Returns:
        ``[B, heads, Nq, dv]`` in the dtype of ``v``.
    """
    if bias is None:
        return F.scaled_dot_product_attention(q, k, v, scale=scale)
    bias = bias.to(q.dtype)
    if q.device.type == "cpu" and bias.requires_grad:
        # No fused CPU kernel has a gradient for the bias. torch's composite one takes 1.4x the time of these lines in
        # the forward pass (1392 windows of 49 tokens): it scales queries and keys separately.
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        logits = (q if scale == 1 else q * scale) @ k.transpose(-2, -1)  # [B, heads, Nq, Nk]
        return logits.add_(bias).softmax(-1) @ v  # [B, heads, Nq, dv]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)


def attend_decomposed(q: Tensor, k: Tensor, v: Tensor, along_h: Tensor, along_w: Tensor, scale: float) -> Tensor:
    """Attention whose bias is a sum of a term of the key's row and one of its column (MViTv2 section 3.1).

    The bias of all pairs is as large as the attention matrix. Without gradients it is made for `BIAS_ELEMENTS` pairs at
    a time. With gradients it would have to be kept: where it is larger than everything else, it is folded into longer
    queries and keys instead, which is exact and needs no bias.

    Args:
        q: Queries, ``[B, heads, Nq, d]``.
        k: Keys, row-major, ``[B, heads, h w, d]``.
        v: Values, ``[B, heads, h w, d]``.
        along_h: Term of the key's row, ``[B, heads, Nq, h]``.
        along_w: Term of its column, ``[B, heads, Nq, w]``.
        scale: Factor on ``q k^T`` alone.

    Returns:
        ``[B, heads, Nq, d]``.
    """
    (b, heads, nq, d), nk = q.shape, k.shape[2]
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, along_h, along_w)):
        folded = (nq + 2 * nk) * (d + along_h.shape[-1] + along_w.shape[-1])  # elements of q, k and v per head
        if nq * nk > folded:
            return _attend_folded(q, k, v, along_h, along_w, scale)
        return _attend_added(q, k, v, along_h, along_w, scale)
    if heads * nq * nk <= BIAS_ELEMENTS:  # whole images or windows at a time
        step = max(1, BIAS_ELEMENTS // (heads * nq * nk))
        parts = zip(*(x.split(step) for x in (q, k, v, along_h, along_w)))
        parts = [_attend_added(*part, scale) for part in parts]
        return parts[0] if len(parts) == 1 else torch.cat(parts)
    step = max(1, BIAS_ELEMENTS // (b * heads * nk))  # queries at a time
    parts = zip(*(x.split(step, dim=2) for x in (q, along_h, along_w)))
    return torch.cat([_attend_added(part, k, v, *along, scale) for part, *along in parts], dim=2)


def _attend_added(q: Tensor, k: Tensor, v: Tensor, along_h: Tensor, along_w: Tensor, scale: float) -> Tensor:
    bias = (along_h[..., :, None] + along_w[..., None, :]).flatten(-2)  # [B, heads, Nq, h*w]
    return attend(q, k, v, bias, scale)


def _attend_folded(q: Tensor, k: Tensor, v: Tensor, along_h: Tensor, along_w: Tensor, scale: float) -> Tensor:
    """The bias as more channels: the query gets the terms, the key one-hot codes of its row and column."""
    h, w = along_h.shape[-1], along_w.shape[-1]
    rows = torch.eye(h, dtype=k.dtype, device=k.device).repeat_interleave(w, dim=0)  # [h*w, h]
    columns = torch.eye(w, dtype=k.dtype, device=k.device).repeat(h, 1)  # [h*w, w]
    codes = torch.cat([rows, columns], dim=-1).expand(*k.shape[:2], -1, -1)  # [B, heads, h*w, h + w]
    q = torch.cat([q * scale, along_h, along_w], dim=-1)  # [B, heads, Nq, d + h + w]
    k = torch.cat([k, codes], dim=-1)  # [B, heads, h*w, d + h + w]
    # Fused kernels want values as long as keys, and a length that is a multiple of 8; zeros change nothing.
    length = -(-q.shape[-1] // 8) * 8
    q, k, padded = (F.pad(x, (0, length - x.shape[-1])) for x in (q, k, v))
    return attend(q, k, padded, scale=1.0)[..., : v.shape[-1]]  # [B, heads, Nq, d]
