"""What the blocks of a plain ViT cost by image and patch size, pixels (patches of 1) included: docs/systems.md."""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True)
class AttentionCost:
    """What the blocks of a plain ViT with global attention cost for one image.

    Attributes:
        tokens: Patches of the image, N. The class token is left out.
        linear: MACs of linear layers in all blocks.
        pair: MACs of products of queries, keys and values in all blocks.
        heads: Attention heads of a block.
        depth: Blocks.
    """

    tokens: int
    linear: int
    pair: int
    heads: int
    depth: int

    @property
    def pairs(self) -> int:
        """Of tokens, N^2: numbers in the attention matrix of one head."""
        return self.tokens**2

    def matrix_bytes(self, dtype: torch.dtype, layers: int | None = None) -> int:
        """Of the attention matrices of some layers; of all when None, as training keeps them without recomputation.

        This is a property of the formula: fused attention keeps no matrix.
        """
        return self.pairs * self.heads * (self.depth if layers is None else layers) * dtype.itemsize


def attention_cost(vit: nn.Module, shape: tuple[int, int], patch: int) -> AttentionCost:
    """Count the blocks of a `vitdense.ViT` without windows, on the meta device, for an image (h, w) and patches of a
    side in pixels. Its own patch size does not matter."""
    arch = vit.arch
    grid = tuple(-(-side // patch) for side in shape)
    tokens = math.prod(grid)
    x = torch.empty(1, tokens, arch.embed_dims, device="meta")  # [1, N, C]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        vit.blocks[0](x, grid, None)
    # All blocks cost the same. On the meta device attention is two batched products; linear layers are none.
    pair = counter.get_flop_counts()["Global"][torch.ops.aten.bmm]
    linear = counter.get_total_flops() - pair
    return AttentionCost(tokens, arch.depth * linear // 2, arch.depth * pair // 2, arch.num_heads, arch.depth)
