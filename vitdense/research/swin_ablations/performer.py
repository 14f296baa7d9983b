"""Attention over a whole map whose cost grows with its tokens, not with their pairs (Performer, FAVOR+)."""

import math

import torch
from torch import Tensor, nn

from vitdense.layers.layout import copied, without_autocast

EPSILON = 1e-4  # the authors', added to every feature: no sum of them is zero


def orthogonal_features(number: int, dim: int) -> Tensor:
    """Random vectors ``[number, dim]`` with the lengths of normal ones, in groups of `dim` orthogonal vectors."""
    groups = []
    for _ in range(math.ceil(number / dim)):
        q, r = torch.linalg.qr(torch.randn(dim, dim))  # [dim, dim] each
        groups.append(q * r.diagonal().sign())  # without the signs the directions, and so the kernels, are biased
    return torch.cat(groups)[:number] * torch.randn(number, dim).norm(dim=1, keepdim=True)


class PerformerAttention(nn.Module):
    """Multi-head self-attention with ``exp(q k)`` as a product of positive random features.

    Values are summed once for all queries, so there are no logits, no `attend` and no bias. Heads of d channels have
    ``d log d`` features, which are drawn once and kept in checkpoints.
    """

    attends_over = "BHWC"

    def __init__(self, dim: int, num_heads: int, qkv_bias: bool) -> None:
        super().__init__()
        self.num_heads, head_dim = num_heads, dim // num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.register_buffer("features", orthogonal_features(max(int(head_dim * math.log(head_dim)), 1), head_dim))

    def forward(self, x: Tensor) -> Tensor:
        """``[B, H, W, C]`` to the same."""
        qkv = self.qkv(x).flatten(1, 2).unflatten(-1, (3, self.num_heads, -1))  # [B, N, 3, heads, d]
        q, k, v = (y.transpose(1, 2) for y in qkv.unbind(2))  # [B, heads, N, d] each
        # In float32 at least: sums over a map are too large for half precision.
        wide = torch.promote_types(v.dtype, torch.float32)
        with without_autocast(x):
            # A shift of the exponents cancels if it is the same for all keys; it may differ by query.
            q, k = self.kernel(q.to(wide), (-1,)), self.kernel(k.to(wide), (-2, -1))  # [B, heads, N, m] each
            y = (q @ (k.mT @ v.to(wide))) / (q @ k.sum(-2)[..., None])  # [B, heads, N, d]
        return self.proj(copied(y.to(v.dtype).transpose(1, 2)).view(x.shape))

    def kernel(self, x: Tensor, same: tuple[int, ...]) -> Tensor:
        """Positive features ``[B, heads, N, m]`` of ``[B, heads, N, d]``, up to a factor that is equal along `same`."""
        y = x * x.shape[-1] ** -0.25
        y = y @ self.features.to(y.dtype).T - y.square().sum(-1, keepdim=True) / 2  # [B, heads, N, m]
        return (y - y.amax(same, keepdim=True)).exp() + EPSILON
