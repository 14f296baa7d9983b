"""The neck of RF-DETR and LW-DETR: joins maps of one stride."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitdense.layers.blocks import LayerNorm2d
from vitdense.mm.registry import MODELS

NORMS = {"layer": LayerNorm2d, "batch": nn.BatchNorm2d}


class ConvNorm(nn.Module):
    """Convolution without a bias, a norm of `NORMS`, SiLU."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, norm: str) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=kernel_size // 2, bias=False)
        self.norm = NORMS[norm](out_channels)

    def forward(self, x: Tensor) -> Tensor:  # [B, C, h, w]
        return F.silu(self.norm(self.conv(x)))


@MODELS.register_module()
class C2fProjector(nn.Module):
    """Maps of one stride, concatenated, through a C2f block of YOLOv8 without shortcuts, and a LayerNorm (LW-DETR).

    Args:
        in_channels: Channels of the maps.
        out_channels: Channels of the result; the attribute is a tuple, as for a backbone.
        num_blocks: Pairs of 3x3 convolutions, on half of the channels.
        norm: Norm after convolutions: ``'layer'``, over channels, as in RF-DETR; ``'batch'``, as in LW-DETR.
    """

    family = "rfdetr_projector"

    def __init__(
        self, in_channels: Sequence[int], out_channels: int = 256, num_blocks: int = 3, norm: str = "layer"
    ) -> None:
        super().__init__()
        self.out_channels = (out_channels,)
        half = out_channels // 2
        self.first = ConvNorm(sum(in_channels), 2 * half, 1, norm)
        self.blocks = nn.ModuleList(
            nn.Sequential(*(ConvNorm(half, half, 3, norm) for _ in range(2))) for _ in range(num_blocks)
        )
        self.last = ConvNorm((2 + num_blocks) * half, out_channels, 1, norm)
        self.norm = LayerNorm2d(out_channels)

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor]:
        """``[B, C_i, h, w]`` each to ``[B, out_channels, h, w]``."""
        parts = list(self.first(torch.cat(list(maps), dim=1)).chunk(2, dim=1))  # [B, half, h, w] each
        for block in self.blocks:
            parts.append(block(parts[-1]))
        return (self.norm(self.last(torch.cat(parts, dim=1))),)
