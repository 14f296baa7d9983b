"""CaiT, "Going deeper with Image Transformers" (Touvron et al., ICCV 2021)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.init import trunc_normal_

from vitdense.errors import OptionError
from vitdense.layers.attention import attend
from vitdense.layers.blocks import Mlp, add_layer_scale, init_transformer
from vitdense.models.vit.model import Attention, BlockSpec, LayerNorm, ViT, ViTBlock
from vitdense.research.cait.sizes import CAIT


class TalkingHeads(Attention):
    """Attention with a linear layer over the heads of the logits, and another over the heads of the weights (CaiT).

    Fused attention cannot mix heads. This form makes all logits, ``[B, heads, N, N]``, and copies them several times.
    """

    def __init__(self, spec: BlockSpec) -> None:
        if spec.table or spec.arch.rope:
            raise OptionError("relative_position, rope: attention with talking heads has neither; leave them out")
        super().__init__(spec)
        self.proj_l = nn.Linear(self.num_heads, self.num_heads)
        self.proj_w = nn.Linear(self.num_heads, self.num_heads)

    def attend(self, qkv: Tensor, grid: tuple[int, int]) -> Tensor:
        """See `Attention`. There are no relative positions, so the grid is not used."""
        q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))  # [B, heads, N, d] each
        x = (q * q.shape[-1] ** -0.5) @ k.mT  # [B, heads, N, N]
        x = self.proj_l(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)  # [B, heads, N, N]
        x = self.proj_w(x.softmax(-1).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)  # [B, heads, N, N]
        return (x @ v).transpose(1, 2).flatten(2)  # [B, N, C]


class CaiTBlock(ViTBlock):
    """A block with talking heads."""

    attention = TalkingHeads


class ClassAttention(nn.Module):
    """Attention of the first token to all."""

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
    """Class attention, then an MLP of the class token, each with LayerScale. The other tokens stay as they are."""

    def __init__(self, dim: int, num_heads: int, mlp_ratio: float, layer_scale: float) -> None:
        super().__init__()
        self.norm1 = LayerNorm(dim)
        self.attn = ClassAttention(dim, num_heads)
        self.norm2 = LayerNorm(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio))
        add_layer_scale(self, dim, layer_scale)

    def forward(self, x: Tensor) -> Tensor:
        """The class token and the tokens of a map, ``[B, 1 + N, C]``, to the new class token, ``[B, 1, C]``."""
        token = x[:, :1] + self.gamma_1 * self.attn(self.norm1(x))  # [B, 1, C]
        return token + self.gamma_2 * self.mlp(self.norm2(token))


class ClassBlocks(nn.Module):
    """A learned class token, and the blocks in which it attends to the tokens of a map."""

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


class CaiT(ViT):
    """A plain ViT with talking heads, whose class token attends after the last block.

    Arguments not listed here: see `ViT`.

    Args:
        arch: A row of `sizes.CAIT`, such as ``'cait_s24'``; or a dict of the fields of `CaiTArch`.
        output_cls_token: Return ``(map, class token)`` in place of the map, which must be the last block's alone.
            Without it the blocks of class attention are left out; such blocks of a checkpoint are ignored.
    """

    family, archs, block = "cait", CAIT, CaiTBlock

    def __init__(
        self,
        arch: str | Mapping = "cait_xxs24",
        *,
        output_cls_token: bool = False,
        mlp_ratio: float = 4.0,
        **options: Any,
    ) -> None:
        self.class_mlp_ratio = mlp_ratio if output_cls_token else None
        super().__init__(arch, mlp_ratio=mlp_ratio, **options)
        self.output_cls_token = output_cls_token
        if output_cls_token and self.out_indices != (self.arch.depth - 1,):
            raise OptionError(
                f"output_cls_token: got out_indices {self.out_indices}, expected ({self.arch.depth - 1},): the token "
                f"attends after the last block alone"
            )

    def build_outputs_and_freeze(self, *args: Any) -> None:
        arch, self.class_blocks = self.arch, None
        if self.class_mlp_ratio is not None:
            sizes = (arch.embed_dims, arch.num_heads, self.class_mlp_ratio, arch.layer_scale, arch.class_blocks)
            self.class_blocks = ClassBlocks(*sizes).apply(init_transformer)
        super().build_outputs_and_freeze(*args)

    def frozen_modules(self) -> list[nn.Module]:
        is_last = self.class_blocks is not None and self.frozen_stages == self.arch.depth
        return [*super().frozen_modules(), *([self.class_blocks] if is_last else [])]

    def to_feature_map(self, x: Tensor, size: tuple[int, int], index: int) -> Tensor | tuple[Tensor, ...]:
        """See `ViT`. The class token is computed here, from the tokens of the last block."""
        out = self.output(x.unflatten(1, size), index)  # [B, C, h, w]
        if self.class_blocks is None:
            return out
        return out, self.output_norm(index)(self.class_blocks(x))[:, 0]  # [B, C]
