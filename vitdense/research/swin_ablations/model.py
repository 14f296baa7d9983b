"""Ablations of Swin's attention (Liu et al., ICCV 2021, Tables 4 to 6).

Parameters have the names of Swin: `SlidingSwin` loads the weights of any Swin.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vitdense.errors import OptionError
from vitdense.layers.attention import masked_bias
from vitdense.layers.bias import TableBias
from vitdense.layers.layout import Windows, copied
from vitdense.models.swin.model import BlockSpec, Swin, SwinBlock, WindowAttention
from vitdense.research.nat.local import LocalAttention, Tiles
from vitdense.research.nat.model import LocalBlock
from vitdense.research.swin_ablations.performer import PerformerAttention


class PositionAttention(WindowAttention):
    """Values weighted by the softmax of the relative position bias alone (Table 4, "rel. pos. w/o app.").

    There are no queries and keys: every window of a layer has the same attention weights.
    """

    def __init__(self, spec: BlockSpec, qkv_bias: bool, relative_bias: bool) -> None:
        if not relative_bias:
            raise OptionError("relative_bias: got False, but it has nothing else; leave it True")
        super().__init__(spec, qkv_bias, relative_bias)
        del self.qkv
        self.v = nn.Linear(spec.dim, spec.dim, bias=qkv_bias)

    def attend(self, x: Tensor, windows: Windows) -> Tensor:
        tokens, n, v = windows.tokens, windows.num_plain, self.v(x)  # [B*nW, N, C]
        bias = self.bias(x.dtype)  # [heads, N, align(N)]
        parts = [(bias[None], v)]
        if windows.mask is not None:
            parts = [(bias[None], v[:n]), (masked_bias(bias, windows), v[n:])][n == 0 :]
        return torch.cat([self.weighted(of_part[..., :tokens], part) for of_part, part in parts])  # [B*nW, N, C]

    def weighted(self, bias: Tensor, v: Tensor) -> Tensor:
        """Weight values ``[n, N, C]`` by `bias` ``[m, heads, N, N]``; window i has the bias i modulo m."""
        # Windows that share weights become channels, so that a batch of any size is one product.
        m, heads = bias.shape[:2]
        repeats = v.shape[0] // m if m else 0
        v = v.unflatten(-1, (heads, self.spec.dim // heads)).unflatten(0, (repeats, m))  # [n/m, m, N, heads, d]
        v = copied(v.permute(1, 3, 2, 0, 4))  # [m, heads, N, n/m, d]
        y = (bias.softmax(-1) @ v.flatten(3)).unflatten(3, v.shape[3:])  # [m, heads, N, n/m, d]
        return copied(y.permute(3, 0, 2, 1, 4)).flatten(0, 1).flatten(2)  # [n, N, C]


class SlidingAttention(LocalAttention):
    """Multi-head self-attention of every position to the window around it: "sliding window" (Tables 5 and 6).

    It has the parameters of `WindowAttention`, and uses the centre of the bias table, for keys up to half a window
    away. The window is square; an even side is reduced by one, so that there is a centre.
    """

    def __init__(self, spec: BlockSpec, qkv_bias: bool, relative_bias: bool) -> None:
        if spec.window[0] != spec.window[1]:
            raise OptionError(f"window_size: got {spec.window}, expected a square")
        super().__init__(spec.dim, spec.num_heads, (spec.window[0] - 1) // 2 * 2 + 1, "mask", None, qkv_bias)
        self.bias = TableBias(spec.window, spec.num_heads) if relative_bias else None
        self.proj = nn.Linear(spec.dim, spec.dim)

    def forward(self, x: Tensor, tiles: Tiles | None = None) -> Tensor:
        """``[B, H, W, C]`` to the same; for `tiles` see `LocalAttention`."""
        return self.proj(super().forward(x, tiles))


class KernelAttention(PerformerAttention):
    """Performer attention over the whole map (Tables 5 and 6). It has no windows, shifts or position bias."""

    def __init__(self, spec: BlockSpec, qkv_bias: bool, relative_bias: bool) -> None:
        super().__init__(spec.dim, spec.num_heads, qkv_bias)


class KernelBlock(SwinBlock):
    """A Swin block with Performer attention, which has no layout."""

    def layout(self, x: Tensor) -> None:
        """None."""

    def mix(self, x: Tensor, windows: None) -> Tensor:
        return self.attn(x)


class PositionSwin(Swin):
    """A Swin that attends by relative position alone, without queries and keys (Table 4, "rel. pos. w/o app.").

    For the arguments see `Swin`.
    """

    attention = PositionAttention


class SlidingSwin(Swin):
    """A Swin with sliding windows in place of shifted ones (Tables 5 and 6); see `SlidingAttention`.

    Arguments: see `Swin`, without `shift`: its windows do not shift.
    """

    block, attention = LocalBlock, SlidingAttention

    def __init__(self, arch: str | Mapping = "tiny", **options: Any) -> None:
        super().__init__(arch, **options, shift=False)


class PerformerSwin(Swin):
    """A Swin with Performer attention over the whole map (Tables 5 and 6), without windows and position bias.

    Arguments: see `Swin`, without `relative_bias`, which it cannot have.
    """

    block, attention = KernelBlock, KernelAttention

    def __init__(self, arch: str | Mapping = "tiny", **options: Any) -> None:
        super().__init__(arch, **options, relative_bias=False)
