"""A transformer block with global attention on the last map of a backbone: the extra layer of HTC++."""

from collections.abc import Sequence

from torch import Tensor, nn

from vitdense.errors import OptionError
from vitdense.layers.attention import attend_windows
from vitdense.layers.blocks import DropPath, LayerNorm, Mlp, init_transformer
from vitdense.module import Module


class GlobalBlock(Module):
    """One pre-norm transformer block on the last map; the other maps pass through.

    Swin's best detectors (HTC++, appendix A2.2) have "an extra global self-attention layer" after the last stage, which
    was not released. This is a reconstruction: a whole block, attention and an MLP of four times the width, is what
    matches the published totals. There is no position embedding, so maps may have any size.

    Args:
        in_channels: Channels of every map; only the last are used.
        num_heads: Attention heads.
        drop_path_rate: Stochastic depth of both branches.
        init_cfg: See `Module`.

    Attributes:
        out_channels: Channels of every output.

    Raises:
        ValueError: The channels of the last map are not a multiple of `num_heads`.
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        num_heads: int,
        drop_path_rate: float = 0.0,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(init_cfg=init_cfg)
        self.out_channels = tuple(in_channels)
        dim, self.num_heads = in_channels[-1], num_heads
        if num_heads < 1 or dim % num_heads:
            raise OptionError(f"num_heads: got {num_heads}, expected a divisor of the {dim} channels of the last map")
        self.norm1 = LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = LayerNorm(dim)
        self.mlp = Mlp(dim, 4 * dim)
        self.drop_path = DropPath(drop_path_rate)
        self.apply(init_transformer)

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Maps ``[B, C_i, h_i, w_i]`` to maps of the same shapes."""
        *others, last = maps
        x = last.flatten(2).transpose(1, 2)  # [B, h*w, C]
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.num_heads, -1))  # [B, h*w, 3, heads, d]
        x = x + self.drop_path(self.proj(attend_windows(qkv)))
        x = x + self.drop_path(self.mlp(self.norm2(x)))
        return *others, x.transpose(1, 2).unflatten(2, last.shape[2:])  # [B, C, h, w] the last
