"""ResNet (He et al., CVPR 2016) with attention between its blocks. The blocks are timm's; names are torchvision's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from timm.layers import DropPath
from timm.models.resnet import BasicBlock, Bottleneck, downsample_conv
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from vitdense.errors import OptionError
from vitdense.layers.blocks import init_transformer, max_pool
from vitdense.layers.local import LocalAttention
from vitdense.layers.non_local import NonLocal, SAGANAttention
from vitdense.models.base import Backbone, Finetune, InitCfg, maybe_checkpoint
from vitdense.models.resnet.sizes import RESNET, ResNetArch
from vitdense.models.rows import find_arch

ATTENTION = {"nonlocal": NonLocal, "sagan": SAGANAttention}


@dataclass(frozen=True)
class BlockSpec:
    """One block: its stage, channels of its input, width of its 3x3 convolutions, channels of its output."""

    stage: int
    in_channels: int
    width: int
    out_channels: int
    stride: int
    drop_path: float


def plan(arch: ResNetArch, drop_path_rate: float) -> list[BlockSpec]:
    """Every block of a ResNet in order. The first block of every stage but the first halves the map."""
    blocks = [(stage, i) for stage, depth in enumerate(arch.depths) for i in range(depth)]
    before, last = [arch.embed_dims, *arch.dims], max(len(blocks) - 1, 1)
    return [
        BlockSpec(
            stage=stage,
            in_channels=arch.dims[stage] if i else before[stage],
            width=arch.embed_dims * 2**stage,
            out_channels=arch.dims[stage],
            stride=2 if stage and i == 0 else 1,
            drop_path=drop_path_rate * n / last,
        )
        for n, (stage, i) in enumerate(blocks)
    ]


class LocalConv(nn.Module):
    """Local self-attention in the place of a 3x3 convolution ("Stand-alone self-attention" section 3.2).

    The product of the query with row and column offsets is added to the logits, which are not scaled. Keys outside of
    the map are masked. The mean over 2x2 pixels follows where the convolution has a stride of 2.

    Args:
        dim: Channels.
        arch: Has the neighbourhood and the heads.
        stride: 1 or 2.
    """

    def __init__(self, dim: int, arch: ResNetArch, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.attn = LocalAttention(dim, arch.num_heads, arch.kernel, position="query", qkv_bias=False, scale=1.0)
        self.attn.apply(init_transformer)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, H, W]`` to ``[B, C, ceil(H / stride), ceil(W / stride)]``."""
        x = self.attn(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)  # [B, C, H, W]
        if self.stride == 1:
            return x
        h, w = x.shape[2:]
        # The mean of the last row is of that row alone. While a model is compiled, one program serves all sizes; eager,
        # padding by nothing would copy the map.
        if torch.compiler.is_compiling() or h % 2 or w % 2:
            x = F.pad(x, (0, (w + 1) // 2 * 2 - w, 0, (h + 1) // 2 * 2 - h), mode="replicate")
        return F.avg_pool2d(x, 2)  # [B, C, h, w]


def make_block(spec: BlockSpec, arch: ResNetArch) -> nn.Module:
    """A block with the usual initialisation: He's, and 0 for the weight of the norm at the end of the branch."""
    downsample = None
    if spec.stride > 1 or spec.in_channels != spec.out_channels:
        downsample = downsample_conv(spec.in_channels, spec.out_channels, 1, spec.stride)
    drop_path = DropPath(spec.drop_path) if spec.drop_path else None
    kind = Bottleneck if arch.bottleneck else BasicBlock
    block = kind(spec.in_channels, spec.width, spec.stride, downsample, drop_path=drop_path)
    if spec.stage in arch.local_stages:
        block.conv2 = LocalConv(spec.width, arch, spec.stride)
    block.apply(init_conv)
    block.zero_init_last()
    return block


def init_conv(module: nn.Module) -> None:
    """He's initialisation of convolutions; use with `apply`."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class ResNetStage(nn.Module):
    """Blocks of one resolution, named by their index, and attention after some of them.

    Args:
        blocks: Its blocks.
        attn: Attention layers by the index of the block that they follow.
        with_cp: Recompute the activations of each block and attention layer in the backward pass.
    """

    def __init__(self, blocks: Sequence[nn.Module], attn: Mapping[int, nn.Module], with_cp: bool) -> None:
        super().__init__()
        self.with_cp = with_cp
        for i, block in enumerate(blocks):
            self.add_module(str(i), block)
        self.attn = nn.ModuleDict({str(i): layer for i, layer in attn.items()})

    @property
    def blocks(self) -> list[nn.Module]:
        """Its blocks."""
        return [module for name, module in self.named_children() if name != "attn"]

    def steps(self) -> list[list[nn.Module]]:
        """Every block, with the attention layer after it if there is one."""
        attn = [[self.attn[str(i)]] if str(i) in self.attn else [] for i in range(len(self.blocks))]
        return [[block, *layer] for block, layer in zip(self.blocks, attn)]

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, H, W]`` to ``[B, C', H', W']``."""
        for step in self.steps():
            for layer in step:
                x = maybe_checkpoint(layer, x, with_cp=self.with_cp and self.training)  # [B, C', H', W']
        return x


def attention_layers(attention: Mapping, arch: ResNetArch) -> dict[tuple[int, int], nn.Module]:
    """Attention layers by the (stage, block) that they follow. For `attention` see `ResNet`.

    Raises:
        ValueError: An unknown kind, or a block that does not exist.
    """
    options = dict(attention)
    kind, after = options.pop("kind", None), options.pop("after", ())
    if kind not in ATTENTION:
        raise OptionError(f"attention.kind: got {kind!r}, expected one of {', '.join(ATTENTION)}")
    pairs = [tuple(pair) if isinstance(pair, (list, tuple)) else pair for pair in after]
    known = {(stage, i) for stage, depth in enumerate(arch.depths) for i in range(depth)}
    if not pairs or not set(pairs) <= known or len(set(pairs)) < len(pairs):
        raise OptionError(
            f"attention.after: got {after!r}, expected different pairs (stage, block) of a ResNet with {arch.depths} "
            f"blocks, counted from 0, such as ((2, 0),)"
        )
    return {(stage, i): ATTENTION[kind](arch.dims[stage], **options) for stage, i in pairs}


class ResNet(Backbone):
    """ResNet as torchvision and mm train it: four maps of strides 4, 8, 16 and 32 from an image of any size.

    The stride of a bottleneck is in its 3x3 convolution. Attention layers follow whole blocks, as in the papers; they
    are the identity at the start, so that pretrained weights keep their meaning. Maps are not normalised. With
    ``finetune='attention'``, the attention layers alone train. Arguments not listed here: see `Backbone`.

    Args:
        arch: ``'resnet18'``, ``'resnet34'``, ``'resnet50'``, ``'resnet101'``, ``'resnet152'``; ``'sasa26'``,
            ``'sasa38'``, ``'sasa50'`` with local self-attention in the place of all 3x3 convolutions; or a dict of the
            fields of `ResNetArch`.
        attention: None, or a dict: `kind`, ``'nonlocal'`` or ``'sagan'``; `after`, the blocks that a layer follows, as
            pairs (stage, block) counted from 0, such as ``((2, 4),)``; and options of `NonLocal` or `SAGANAttention`.
        norm_eval: Keep all BNs in eval mode while training, as mmdet does with pretrained weights: their statistics
            stay. Set it to False to train from random weights.

    Raises:
        ValueError: An unknown arch, kind or block, ``finetune='mlp'``, or ``'attention'`` without attention.
    """

    family = "resnet"

    def __init__(
        self,
        arch: str | Mapping = "resnet50",
        in_channels: int = 3,
        attention: Mapping | None = None,
        drop_path_rate: float = 0.0,
        norm_eval: bool = True,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        frozen_stages: int | str = -1,
        finetune: Finetune = None,
        with_cp: bool = False,
        init_cfg: InitCfg = None,
    ) -> None:
        super().__init__(init_cfg=init_cfg)
        self.arch = find_arch(arch, RESNET)
        self.norm_eval = norm_eval
        if finetune == "attention" and attention is None and not self.arch.local_stages:
            raise OptionError("finetune: got 'attention' for a ResNet without attention; set attention, or None here")
        if finetune == "mlp":
            raise OptionError("finetune: got 'mlp' for a ResNet, which has no MLPs; expected 'attention' or None")
        self.conv1 = nn.Conv2d(in_channels, self.arch.embed_dims, 7, stride=2, padding=3, bias=False)
        self.conv1.apply(init_conv)
        self.bn1 = nn.BatchNorm2d(self.arch.embed_dims)
        self.relu = nn.ReLU(inplace=True)
        specs, dims = plan(self.arch, drop_path_rate), self.arch.dims
        attn = {} if attention is None else attention_layers(attention, self.arch)
        for i in range(len(dims)):
            blocks = [make_block(spec, self.arch) for spec in specs if spec.stage == i]
            after = {block: layer for (stage, block), layer in attn.items() if stage == i}
            self.add_module(f"layer{i + 1}", ResNetStage(blocks, after, with_cp))
        strides = [4 * 2**i for i in range(len(dims))]
        self.build_outputs_and_freeze(dims, strides, out_indices, frozen_stages, finetune, lambda _: nn.Identity())

    def stem_modules(self) -> list[nn.Module]:
        return [self.conv1, self.bn1]

    def stage_modules(self) -> list[ResNetStage]:
        return [getattr(self, f"layer{i + 1}") for i in range(len(self.arch.depths))]

    def layers(self) -> list[list[nn.Module]]:
        stages = self.stage_modules()[: self.out_indices[-1] + 1]
        return [self.stem_modules(), *(step for stage in stages for step in stage.steps())]

    def train(self, mode: bool = True) -> "ResNet":
        """As `Backbone.train`; with `norm_eval`, all BNs stay in eval mode."""
        super().train(mode)
        for module in self.modules() if self.norm_eval else ():
            if isinstance(module, _BatchNorm):
                module.eval()
        return self

    def init_weights(self) -> None:
        """As `Backbone.init_weights`. What `init_cfg` draws is for convolutions: attention starts as the identity."""
        super().init_weights()
        if self.init_cfg and not self._names_weights():
            for module in self.modules():
                if isinstance(module, NonLocal):
                    module.init_weights()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Image ``[B, 3, H, W]`` to one map ``[B, C_i, H_i, W_i]`` per index of `out_indices`."""
        x = x.contiguous(memory_format=torch.channels_last)
        x = max_pool(self.relu(self.bn1(self.conv1(x))), kernel=3, stride=2, padding=1)  # [B, C, H/4, W/4]
        return self.forward_stages(x)

    def output(self, x: Tensor, stage: int) -> Tensor:
        """Output map of a stage: it is ``[B, C, H, W]`` already, and has no norm."""
        return x
