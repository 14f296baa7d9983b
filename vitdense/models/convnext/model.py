"""ConvNeXt (Liu et al., CVPR 2022) and ConvNeXt V2 (Woo et al., CVPR 2023) as backbones for dense prediction."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import DropPath
from torch import Tensor, nn

from vitdense.families import find_arch
from vitdense.layers.blocks import (
    LayerNorm,
    Mlp,
    PatchEmbed,
    ResidualLayerNorm,
    init_transformer,
    pad_to_multiple,
    scaled,
)
from vitdense.models.base import Backbone, Stage, drop_path_rates
from vitdense.models.convnext.sizes import CONVNEXT

NORM, RESIDUAL_NORM = partial(LayerNorm, eps=1e-6), partial(ResidualLayerNorm, eps=1e-6)


class GrnMlp(nn.Module):
    """MLP with a global response normalisation of its hidden map (V2, section 3.3)."""

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.grn = nn.ParameterDict({name: torch.zeros(hidden_dim) for name in ("weight", "bias")})
        self.fc2 = nn.Linear(hidden_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, H, W, C]`` to the same."""
        x = F.gelu(self.fc1(x))  # [B, H, W, 4*C]
        accurate = torch.promote_types(x.dtype, torch.float32)  # squares of a map overflow half precision
        size = x.to(accurate).norm(dim=(1, 2), keepdim=True)  # [B, 1, 1, 4*C]
        share = (size / (size.mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        weight, bias = (self.grn[name].to(x.dtype) for name in ("weight", "bias"))
        return self.fc2(x + torch.addcmul(bias, weight, x * share))


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution of 7x7, LayerNorm, MLP, residual."""

    def __init__(self, dim: int, drop_path: float, grn: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.norm = NORM(dim)
        self.mlp = GrnMlp(dim, 4 * dim) if grn else Mlp(dim, 4 * dim)
        self.gamma = None if grn else nn.Parameter(1e-6 * torch.ones(dim))
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """``[B, H, W, C]`` to the same."""
        y = self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)  # [B, H, W, C]
        return x + self.drop_path(scaled(self.mlp(self.norm(y)), self.gamma))


class ConvDownsample(nn.Module):
    """Halve the map and double the channels: LayerNorm, then a convolution of 2x2 with stride 2 (section 2.6)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = NORM(dim)
        self.reduction = nn.Conv2d(dim, 2 * dim, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, H, W, C]``, padded right and bottom to even sizes, to ``[B, ceil(H/2), ceil(W/2), 2 C]``."""
        x = pad_to_multiple(self.norm(x).permute(0, 3, 1, 2), 2)  # [B, C, H, W]
        return self.reduction(x).permute(0, 2, 3, 1)  # [B, h, w, 2*C]


class ConvNeXt(Backbone):
    """ConvNeXt: four maps of strides 4, 8, 16 and 32 from an image of any size, each with a LayerNorm.

    Sizes are rounded up; the authors' code drops an odd last row or column. Arguments not listed here: see `Backbone`.

    Args:
        arch: A row of `CONVNEXT`: ``'tiny'`` to ``'xlarge'``, ``'v2_atto'`` to ``'v2_huge'``; or a dict of the fields
            of `ConvNeXtArch`.
    """

    family = "convnext"

    def __init__(self, arch: str | Mapping = "tiny", *, drop_path_rate: float = 0.1, **common: Any) -> None:
        super().__init__(drop_path_rate=drop_path_rate, **common)
        row = self.arch = find_arch(arch, CONVNEXT)
        dims = [row.embed_dims * 2**i for i in range(len(row.depths))]
        rates = iter(drop_path_rates(drop_path_rate, sum(row.depths)))
        self.patch_embed = PatchEmbed(self.in_channels, dims[0], 4, RESIDUAL_NORM)
        self.absolute_pos_embed = nn.Identity()
        self.stages = nn.ModuleList()
        for dim, depth in zip(dims, row.depths):
            blocks = [ConvNeXtBlock(dim, next(rates), row.grn) for _ in range(depth)]
            self.stages.append(Stage(blocks, ConvDownsample(dim) if dim < dims[-1] else None, self.with_cp))
        self.apply(init_transformer)
        self.build_outputs_and_freeze(dims, [4 * 2**i for i in range(len(dims))], NORM)
