"""Attention between all positions of a CNN's map: Non-local (Wang et al., CVPR 2018), SAGAN (Zhang et al., 2019)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitdense.errors import OptionError, check_choice
from vitdense.layers.attention import attend
from vitdense.layers.blocks import max_pool
from vitdense.layers.layout import copied, longer
from vitdense.layers.resize import crop


class NonLocal(nn.Module):
    """``x + norm(out(softmax(scale * theta(x) phi(x)^T) g(x)))`` over all positions of a map (Non-local section 3.2).

    This is the paper's embedded Gaussian. Theta, phi, g and out are 1x1 convolutions. The norm is a BN whose weight
    starts at 0, so that a new block is exactly the identity. The matrix of all pairs of positions is never in memory.
    In mm it is a plugin layer,
    ``plugins=[dict(cfg=dict(type='vitdense.NonLocal'), stages=..., position='after_conv3')]``.

    Args:
        in_channels: Channels of the map, C.
        reduction: Queries and keys have ``C / reduction`` channels.
        value_reduction: Values have ``C / value_reduction`` channels, a multiple of the channels of the keys.
        bias: Whether the convolutions have a bias.
        pool: 2x2 max pooling ``'after'`` phi and g (the paper, mmcv), ``'before'`` them (the authors' code, which is
            another function), or None. A side of 1 is not pooled.
        scale: Factor on the logits; ``(C / reduction) ** -0.5`` when None (the authors' code), 1 in the paper.

    Raises:
        ValueError: Channels that do not divide, or an unknown `pool`.
    """

    _abbr_ = "non_local"  # mm's name of the plugin
    attends_over = "BCHW"

    def __init__(
        self,
        in_channels: int,
        reduction: int = 2,
        value_reduction: int = 2,
        bias: bool = True,
        pool: str | None = None,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        if in_channels % reduction or reduction % value_reduction:
            raise OptionError(
                f"reduction: got {reduction} for {in_channels} channels, expected a divisor of them that is a multiple "
                f"of value_reduction, {value_reduction}"
            )
        check_choice("pool", pool, (None, "before", "after"))
        self.pool, self.scale = pool, scale
        # Fused kernels need values as long as keys. Longer values become heads that share queries and keys.
        self.num_heads = reduction // value_reduction
        keys, values = in_channels // reduction, in_channels // value_reduction
        self.theta = nn.Conv2d(in_channels, keys, 1, bias=bias)
        self.phi = nn.Conv2d(in_channels, keys, 1, bias=bias)
        self.g = nn.Conv2d(in_channels, values, 1, bias=bias)
        self.out = nn.Conv2d(values, in_channels, 1, bias=bias)
        self.norm = nn.BatchNorm2d(in_channels)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialise convolutions with std 0.01, as the authors do, and the norm with 0.

        mm calls this after its backbone has initialised all convolutions, and all norms with 1.
        """
        for conv in (self.theta, self.phi, self.g, self.out):
            nn.init.normal_(conv.weight, std=0.01)
            if conv.bias is not None:
                nn.init.zeros_(conv.bias)
        for parameter in self.norm.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, H, W]`` to the same."""
        # Channels-last: the tokens below are then views with adjacent channels, as fused attention needs.
        source = x.contiguous(memory_format=torch.channels_last)
        pooled = _pool(source) if self.pool == "before" else source  # [B, C, h, w]
        q, k, v = self.theta(source), self.phi(pooled), self.g(pooled)
        if self.pool == "after":
            k, v = _pool(k), _pool(v)
        q, k, v = (t.flatten(2).transpose(1, 2) for t in (q, k, v))  # [B, N, d], [B, n, d], [B, n, heads*d]
        q, k = (t[:, None].expand(-1, self.num_heads, -1, -1) for t in (q, k))  # [B, heads, N, d], [B, heads, n, d]
        v = v.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # [B, heads, n, d]
        if torch.compiler.is_compiling():  # decomposed attention asks for the memory format
            q, k, v = (copied(t) for t in (q, k, v))
        y = attend(q, k, v, scale=self.scale).transpose(1, 2).flatten(2)  # [B, N, heads*d]
        return x + self.norm(self.out(y.transpose(1, 2).unflatten(2, x.shape[2:])))  # [B, C, H, W]


class Gamma(nn.Module):
    """A learned factor, 0 at the start (SAGAN equation 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight.to(x.dtype) * x


class SAGANAttention(NonLocal):
    """SAGAN's attention (section 3) as in the authors' code: see `NonLocal`.

    Queries and keys have C / 8 channels; there is no bias and no logit scale, and `Gamma` is in the place of the norm.
    The code's spectral norm serves the training of GANs and is not here.

    Args:
        in_channels: Channels of the map, C; a multiple of 8.
        value_reduction: Values have ``C / value_reduction`` channels: 2 in the code, 8 in the paper (section 3).
        pool: As in `NonLocal`: ``'after'`` in the code, None in the paper.
    """

    _abbr_ = "sagan_attention"

    def __init__(self, in_channels: int, value_reduction: int = 2, pool: str | None = "after") -> None:
        super().__init__(in_channels, 8, value_reduction, bias=False, pool=pool, scale=1.0)
        self.norm = Gamma()


def _pool(x: Tensor) -> Tensor:
    """2x2 max pooling of ``[B, C, H, W]`` to ``[B, C, H // 2, W // 2]``; a side of 1 stays.

    While compiling, an odd row and column are padded, pooled and dropped, because torch's own form is compiled for one
    parity of the sizes. In eager mode the padding would copy the map.
    """
    h, w = x.shape[2:]
    if not torch.compiler.is_compiling():
        return F.max_pool2d(x, (min(h, 2), min(w, 2)))  # [B, C, h, w]
    return crop(max_pool(x, 2, 2), (longer(h // 2, 1), longer(w // 2, 1)))  # [B, C, h, w]
