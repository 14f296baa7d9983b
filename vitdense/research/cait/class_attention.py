"""Class attention: layers after the blocks of a ViT in which a class token alone attends (CaiT section 3)."""

from functools import partial

import torch
from timm.layers import trunc_normal_
from torch import Tensor, nn

from vitdense.layers import blocks
from vitdense.layers.attention import attend
from vitdense.layers.blocks import Mlp

LayerNorm = partial(blocks.LayerNorm, eps=1e-6)


class ClassAttention(nn.Module):
    """Attention of the first token to all.

    Args:
        dim: Channels.
        num_heads: Attention heads.
    """

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        for name in ("q", "k", "v", "proj"):
            self.add_module(name, nn.Linear(dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        """``[B, 1 + N, C]`` to ``[B, 1, C]``."""
        q, k, v = (y.unflatten(-1, (self.num_heads, -1)) for y in (self.q(x[:, :1]), self.k(x), self.v(x)))
        y = attend(*(y.transpose(1, 2) for y in (q, k, v)))  # [B, heads, 1, d]
        return self.proj(y.transpose(1, 2).flatten(2))  # [B, 1, C]


class ClassBlock(nn.Module):
    """Class attention, then an MLP of the class token, each with LayerScale. The other tokens stay as they are.

    Args:
        dim: Channels.
        num_heads: Attention heads.
        mlp_ratio: Hidden width of the MLP over `dim`.
        layer_scale: Initial value of the factors on the branches.
    """

    def __init__(self, dim: int, num_heads: int, mlp_ratio: float, layer_scale: float) -> None:
        super().__init__()
        self.norm1 = LayerNorm(dim)
        self.attn = ClassAttention(dim, num_heads)
        self.norm2 = LayerNorm(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio))
        self.gamma_1 = nn.Parameter(torch.full((dim,), layer_scale))
        self.gamma_2 = nn.Parameter(torch.full((dim,), layer_scale))

    def forward(self, x: Tensor) -> Tensor:
        """The class token and those of a map, ``[B, 1 + N, C]``, to the new class token, ``[B, 1, C]``."""
        token = x[:, :1] + self.gamma_1 * self.attn(self.norm1(x))  # [B, 1, C]
        return token + self.gamma_2 * self.mlp(self.norm2(token))


class ClassBlocks(nn.Module):
    """A learned class token, and the blocks in which it attends to the tokens of a map.

    Args:
        dim: This and the next three: see `ClassBlock`.
        depth: Blocks.
    """

    def __init__(self, dim: int, num_heads: int, mlp_ratio: float, layer_scale: float, depth: int) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim))
        trunc_normal_(self.cls_token, std=0.02)
        self.blocks = nn.ModuleList(ClassBlock(dim, num_heads, mlp_ratio, layer_scale) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        """Tokens ``[B, N, C]`` to the class token ``[B, 1, C]``."""
        token = self.cls_token.expand(x.shape[0], -1, -1)  # [B, 1, C]
        for block in self.blocks:
            token = block(torch.cat([token, x], dim=1))
        return token
