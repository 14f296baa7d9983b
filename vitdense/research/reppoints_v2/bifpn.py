"""Bidirectional feature pyramid with learned fusion weights and dense 3x3 convolutions."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitdense.errors import OptionError
from vitdense.layers.blocks import max_pool
from vitdense.module import Module

GROUPS = 32  # of every GroupNorm


class ConvNorm(nn.Module):
    """Convolution of an odd kernel size without bias, then GroupNorm; no activation."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=kernel_size // 2, bias=False)
        self.gn = nn.GroupNorm(GROUPS, out_channels)
        nn.init.xavier_uniform_(self.conv.weight)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, in_channels, h, w]`` to ``[B, out_channels, h, w]``."""
        return self.gn(self.conv(x))  # [B, out_channels, h, w]


class Fuse(nn.Module):
    """Fast normalised fusion (EfficientDet, section 3.3), then swish: a weighted mean with weights of at least 0."""

    def __init__(self, num_maps: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.ones(1, 1, 1, 1, num_maps))

    def forward(self, *maps: Tensor) -> Tensor:
        """Maps ``[B, C, h, w]`` to one."""
        weights = self.weights.relu()
        weights = (weights / (weights.sum() + 1e-4)).unbind(-1)
        return F.silu(sum(weight * x for weight, x in zip(weights, maps)))


class BiFPNLayer(nn.Module):
    """A top-down pass, then a bottom-up pass, over maps that halve in size, rounded up.

    Maps with other channels than the outputs get a 1x1 convolution first.
    """

    def __init__(self, in_channels: Sequence[int], out_channels: int) -> None:
        super().__init__()
        nodes = len(in_channels) - 1  # of a pass
        self.lateral_convs = nn.ModuleList(
            nn.Identity() if width == out_channels else ConvNorm(width, out_channels, 1) for width in in_channels
        )
        self.lateral_combine = nn.ModuleList(Fuse(2) for _ in range(nodes))
        self.lateral_combine_conv = nn.ModuleList(ConvNorm(out_channels, out_channels, 3) for _ in range(nodes))
        self.out_combine = nn.ModuleList(Fuse(3 if i < nodes - 1 else 2) for i in range(nodes))
        self.out_combine_conv = nn.ModuleList(ConvNorm(out_channels, out_channels, 3) for _ in range(nodes))

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Maps ``[B, C_i, h_i, w_i]`` to ``[B, out_channels, h_i, w_i]``, finest first."""
        lateral = [conv(x) for conv, x in zip(self.lateral_convs, maps)]
        last = len(lateral) - 1
        top_down = lateral[:]
        for i in reversed(range(last)):
            up = F.interpolate(top_down[i + 1], lateral[i].shape[2:])  # [B, C, h_i, w_i]
            top_down[i] = self.lateral_combine_conv[i](self.lateral_combine[i](lateral[i], up))
        outs = top_down[:1]
        for i in range(last):
            down = max_pool(outs[i], 3, 2, 1)  # [B, C, h_(i+1), w_(i+1)]
            others = (top_down[i + 1], lateral[i + 1]) if i + 1 < last else (lateral[last],)
            outs.append(self.out_combine_conv[i](self.out_combine[i](down, *others)))
        return outs


class BiFPN(Module):
    """The BiFPN of Swin's RepPoints V2: GroupNorm of 32 groups, dense convolutions, no activation after them.

    EfficientDet's (section 3) has depthwise convolutions and BatchNorm. Modules have the names of the authors' weights.

    Args:
        in_channels: Channels of the maps, finest first.
        out_channels: Channels of every output, a multiple of 32.
        num_outs: Outputs. Those beyond the maps start from 3x3 max pooling with stride 2 of the last map.
        num_repeat: Layers.
        init_cfg: See `Module`.

    Attributes:
        out_channels: Channels of every output.

    Raises:
        ValueError: `out_channels` is no multiple of 32, or there are fewer outputs than maps.
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        out_channels: int = 256,
        num_outs: int = 5,
        num_repeat: int = 2,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(init_cfg=init_cfg)
        if out_channels % GROUPS:
            raise OptionError(f"out_channels: got {out_channels}, expected a multiple of {GROUPS}, for GroupNorm")
        if num_outs < len(in_channels):
            raise OptionError(f"num_outs: got {num_outs}, expected at least {len(in_channels)}: as many as in_channels")
        self.in_channels, self.num_outs = tuple(in_channels), num_outs
        widths = (*in_channels, *in_channels[-1:] * (num_outs - len(in_channels)))
        self.out_channels = (out_channels,) * num_outs
        self.bi_fpn = nn.Sequential(
            *(BiFPNLayer(self.out_channels if i else widths, out_channels) for i in range(num_repeat))
        )

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Maps ``[B, C_i, h_i, w_i]`` that halve in size, rounded up, to ``[B, out_channels, h_i, w_i]``."""
        if tuple(x.shape[1] for x in maps) != self.in_channels:
            raise OptionError(
                f"BiFPN: got maps of {[x.shape[1] for x in maps]} channels, expected {list(self.in_channels)}; set "
                f"in_channels to the backbone's, and its out_indices to as many"
            )
        maps = list(maps)
        while len(maps) < self.num_outs:
            maps.append(max_pool(maps[-1], 3, 2, 1))  # [B, C, ceil(h/2), ceil(w/2)]
        return tuple(self.bi_fpn(maps))
