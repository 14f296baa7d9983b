"""ResNet (He et al., CVPR 2016). The blocks are timm's; names are torchvision's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from timm.layers import DropPath
from timm.models.resnet import BasicBlock, Bottleneck, downsample_conv
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from vitdense.families import find_arch
from vitdense.layers.blocks import init_conv, max_pool
from vitdense.models.base import Backbone, check_image, drop_path_rates, maybe_checkpoint
from vitdense.research.resnet.sizes import RESNET, ResNetArch


@dataclass(frozen=True)
class BlockSpec:
    """One block."""

    stage: int  # counted from 0
    in_channels: int  # channels of the input
    width: int  # channels of the 3x3 convolutions
    out_channels: int  # channels of the output
    stride: int  # 2 halves the map
    drop_path: float  # stochastic depth


def plan(arch: ResNetArch, drop_path_rate: float) -> list[BlockSpec]:
    """Every block of a ResNet in order. The first block of every stage but the first halves the map."""
    blocks = [(stage, i) for stage, depth in enumerate(arch.depths) for i in range(depth)]
    before, rates = [arch.embed_dims, *arch.dims], drop_path_rates(drop_path_rate, len(blocks))
    return [
        BlockSpec(
            stage=stage,
            in_channels=arch.dims[stage] if i else before[stage],
            width=arch.embed_dims * 2**stage,
            out_channels=arch.dims[stage],
            stride=2 if stage and i == 0 else 1,
            drop_path=rate,
        )
        for (stage, i), rate in zip(blocks, rates)
    ]


class ResNetStage(nn.Sequential):
    """Blocks of one resolution, named by their index; the first one halves the map."""

    downsample = None

    def __init__(self, blocks: Sequence[nn.Module], with_cp: bool) -> None:
        super().__init__(*blocks)
        self.with_cp = with_cp

    def steps(self) -> list[list[nn.Module]]:
        """Every block, with what follows it before the next one."""
        return [[block] for block in self.children()]

    @property
    def blocks(self) -> list[nn.Module]:
        return [step[0] for step in self.steps()]

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, H, W]`` to ``[B, C', H', W']``."""
        for step in self.steps():
            for layer in step:
                x = maybe_checkpoint(layer, x, with_cp=self.with_cp and self.training)  # [B, C', H', W']
        return x


class ResNet(Backbone):
    """ResNet as torchvision and mm train it: four maps of strides 4, 8, 16 and 32 from an image of any size.

    The stride of a bottleneck is in its 3x3 convolution. Maps are not normalised. Arguments not listed here: see
    `Backbone`. Variants are classes with other blocks or stages: see `make_block` and `make_stage`.

    Args:
        arch: ``'resnet18'``, ``'resnet34'``, ``'resnet50'``, ``'resnet101'``, ``'resnet152'``; or a dict of the
            fields of `ResNetArch`.
        norm_eval: Keep all BNs in eval mode while training, as mmdet does with pretrained weights: their statistics
            stay. Set it to False to train from random weights.
    """

    family = "resnet"
    archs: Mapping[str, ResNetArch] = RESNET

    def __init__(self, arch: str | Mapping = "resnet50", *, norm_eval: bool = True, **common: Any) -> None:
        super().__init__(**common)
        self.arch = find_arch(arch, self.archs)
        self.norm_eval = norm_eval
        self.conv1 = nn.Conv2d(self.in_channels, self.arch.embed_dims, 7, stride=2, padding=3, bias=False)
        self.conv1.apply(init_conv)
        self.bn1 = nn.BatchNorm2d(self.arch.embed_dims)
        self.relu, self.absolute_pos_embed = nn.ReLU(inplace=True), nn.Identity()
        specs, dims = plan(self.arch, self.drop_path_rate), self.arch.dims
        for i in range(len(dims)):
            blocks = [self.make_block(spec) for spec in specs if spec.stage == i]
            self.add_module(f"layer{i + 1}", self.make_stage(i, blocks))
        self.build_outputs_and_freeze(dims, [4 * 2**i for i in range(len(dims))], lambda _: nn.Identity())

    def make_block(self, spec: BlockSpec) -> nn.Module:
        """A block, initialised by He et al., with weight 0 in the norm at the end of the branch."""
        downsample = None
        if spec.stride > 1 or spec.in_channels != spec.out_channels:
            downsample = downsample_conv(spec.in_channels, spec.out_channels, 1, spec.stride)
        drop_path = DropPath(spec.drop_path) if spec.drop_path else None
        kind = Bottleneck if self.arch.bottleneck else BasicBlock
        block = kind(spec.in_channels, spec.width, spec.stride, downsample, drop_path=drop_path)
        block.apply(init_conv)
        block.zero_init_last()
        return block

    def make_stage(self, stage: int, blocks: Sequence[nn.Module]) -> ResNetStage:
        return ResNetStage(blocks, self.with_cp)

    def stem_modules(self) -> list[nn.Module]:
        return [self.conv1, self.bn1]

    def stage_modules(self) -> list[ResNetStage]:
        return [getattr(self, f"layer{i + 1}") for i in range(len(self.arch.depths))]

    def train(self, mode: bool = True) -> "ResNet":
        """As `Backbone.train`; with `norm_eval`, all BNs stay in eval mode."""
        super().train(mode)
        for module in self.modules() if self.norm_eval else ():
            if isinstance(module, _BatchNorm):
                module.eval()
        return self

    def embed(self, x: Tensor) -> Tensor:
        """The map before the first stage, ``[B, C, H/4, W/4]``."""
        x = check_image(x, self).contiguous(memory_format=torch.channels_last)
        return max_pool(self.relu(self.bn1(self.conv1(x))), kernel=3, stride=2, padding=1)  # [B, C, H/4, W/4]

    def output(self, x: Tensor, stage: int) -> Tensor:
        """Output map of a stage: it is ``[B, C, H, W]`` already, and has no norm."""
        return x
