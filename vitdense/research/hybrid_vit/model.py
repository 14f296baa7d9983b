"""The hybrid architecture of ViT (Dosovitskiy et al., ICLR 2021, section 3.1): a plain ViT on the map of a ResNet."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from timm.layers import StdConv2d
from timm.models.resnetv2 import ResNetV2
from torch import Tensor, nn

from vitdense.errors import check_choice
from vitdense.layers.blocks import pad_to_multiple
from vitdense.models.vit.model import ViT
from vitdense.research.hybrid_vit.sizes import RESNETS


class SameConv(StdConv2d):
    """Convolution with standardised weights and TensorFlow's "SAME" padding, for maps that the stride divides.

    For those the padding depends on the kernel alone. timm's `StdConv2dSame` asks for the map's size, and so could be
    exported for one size only.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, **options: Any) -> None:
        padding = max(kernel_size - stride, 0)  # of an axis
        super().__init__(in_channels, out_channels, kernel_size, stride, padding // 2, eps=1e-8, **options)
        self.is_uneven = padding % 2 == 1

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, H, W]`` to ``[B, C', H / stride, W / stride]``."""
        return super().forward(F.pad(x, (0, 1, 0, 1)) if self.is_uneven else x)  # [B, C', h, w]


class HybridStem(nn.Module):
    """Tokens of a ResNet's last map by a 1x1 convolution: the hybrid architecture of ViT (section 3.1).

    It is timm's ResNet with GroupNorm and standardised weights (section 4.1, "ResNet (BiT)"). With three stages its
    stride is 16, with four 32.
    """

    def __init__(self, in_channels: int, dim: int, layers: Sequence[int]) -> None:
        super().__init__()
        self.patch_size = 2 ** (len(layers) + 1)
        self.backbone = ResNetV2(
            layers=layers,
            num_classes=0,
            in_chans=in_channels,
            global_pool="",
            preact=False,
            conv_layer=SameConv,
            zero_init_last=True,  # as the authors' code
        )
        # "SAME"; zeros change no maximum after a ReLU.
        self.backbone.stem.pool = nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.MaxPool2d(3, stride=2))
        self.proj = nn.Conv2d(self.backbone.num_features, dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Image ``[B, 3, H, W]``, padded right and bottom to whole patches, to ``[B, ceil(H/p), ceil(W/p), C]``."""
        x = self.backbone.forward_features(pad_to_multiple(x, self.patch_size))  # [B, C', h, w]
        return self.proj(x).permute(0, 2, 3, 1)  # [B, h, w, C]


class HybridViT(ViT):
    """A ViT on the last map of a ResNet. Its `patch_size` is the ResNet's stride; for other arguments see `ViT`.

    Args:
        stem: A row of `RESNETS`: ``'r50_s16'``, ``'r50_s32'`` or ``'r26_s32'``.
    """

    family = "hybrid_vit"

    def __init__(self, arch: str | Mapping = "deit_small", *, stem: str = "r50_s16", **options: Any) -> None:
        check_choice("stem", stem, RESNETS)
        self.stem = stem
        super().__init__(arch, patch_size=2 ** (len(RESNETS[stem]) + 1), **options)

    def make_stem(self, in_channels: int) -> nn.Module:
        return HybridStem(in_channels, self.arch.embed_dims, RESNETS[self.stem])
