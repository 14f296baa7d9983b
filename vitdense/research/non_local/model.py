"""A ResNet with attention between its blocks (Non-local, Wang et al., CVPR 2018; SAGAN, Zhang et al., ICML 2019)."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from vitdense.errors import OptionError, check_choice
from vitdense.research.non_local.attention import NonLocal, SAGANAttention
from vitdense.research.resnet.model import ResNet, ResNetStage
from vitdense.research.resnet.sizes import ResNetArch

ATTENTION = {"nonlocal": NonLocal, "sagan": SAGANAttention}


class NonLocalStage(ResNetStage):
    """A stage with attention layers after some blocks; `attn` has the layers by the index of the block before."""

    def __init__(self, blocks: Sequence[nn.Module], with_cp: bool, attn: Mapping[int, nn.Module]) -> None:
        super().__init__(blocks, with_cp)
        self.attn = nn.ModuleDict({str(i): layer for i, layer in attn.items()})

    def steps(self) -> list[list[nn.Module]]:
        """Every block, with the attention layer after it if there is one."""
        blocks = {name: block for name, block in self.named_children() if name != "attn"}
        return [[block, *([self.attn[i]] if i in self.attn else [])] for i, block in blocks.items()]


def layers_after(attention: Mapping, arch: ResNetArch) -> dict[tuple[int, int], nn.Module]:
    """Attention layers by the (stage, block) that they follow. For `attention` see `NonLocalResNet`."""
    options = dict(attention)
    kind, after = options.pop("kind", None), options.pop("after", ())
    check_choice("attention.kind", kind, ATTENTION)
    pairs = [tuple(pair) if isinstance(pair, (list, tuple)) else pair for pair in after]
    known = {(stage, i) for stage, depth in enumerate(arch.depths) for i in range(depth)}
    if not pairs or not set(pairs) <= known or len(set(pairs)) < len(pairs):
        raise OptionError(
            f"attention.after: got {after!r}, expected different pairs (stage, block) of a ResNet with {arch.depths} "
            f"blocks, counted from 0, such as ((2, 0),)"
        )
    return {(stage, i): ATTENTION[kind](arch.dims[stage], **options) for stage, i in pairs}


class NonLocalResNet(ResNet):
    """A ResNet with attention layers after whole blocks, as in the papers.

    They start as the identity, so that pretrained weights of a ResNet keep their meaning. With ``finetune='attention'``
    only they train. Arguments not listed here: see `ResNet`.

    Args:
        attention: A dict: `kind`, ``'nonlocal'`` or ``'sagan'``; `after`, the blocks that a layer follows, as pairs
            (stage, block) counted from 0, such as ``((2, 4),)``; and options of `NonLocal` or `SAGANAttention`. None
            for no layers, as `ResNet`.
    """

    takes_tensors = False  # files lack the attention layers, whose values the constructor makes

    def __init__(self, arch: str | Mapping = "resnet50", *, attention: Mapping | None = None, **options: Any) -> None:
        self.attention = attention
        super().__init__(arch, **options)

    def make_stage(self, stage: int, blocks: Sequence[nn.Module]) -> ResNetStage:
        layers = layers_after(self.attention, self.arch) if self.attention is not None else {}
        return NonLocalStage(blocks, self.with_cp, {i: layer for (of, i), layer in layers.items() if of == stage})

    def init_weights(self) -> None:
        """As `Backbone.init_weights`, but attention layers start as the identity, whatever `init_cfg` says."""
        super().init_weights()
        if self.init_cfg and not self._names_weights():
            for module in self.modules():
                if isinstance(module, NonLocal):
                    module.init_weights()
