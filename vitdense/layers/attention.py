"""The one attention primitive of the project."""

import torch.nn.functional as F
from torch import Tensor


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
    if bias is not None:
        bias = bias.to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)
