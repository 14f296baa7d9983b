"""Parallel blocks and stems of "Three things everyone should know about Vision Transformers" (Touvron et al., 2022).

Its third thing, fine-tuning of the attention alone, is `finetune='attention'` of every backbone.
"""

from functools import partial
from typing import Any

from torch import Tensor, nn

from vitdense.errors import OptionError
from vitdense.layers.blocks import scaled
from vitdense.layers.layout import Windows
from vitdense.layers.rope import Rotation
from vitdense.models.vit.model import BlockSpec, ViT, ViTBlock
from vitdense.research.three_things.stems import STEMS


class ParallelBlock(ViTBlock):
    """Attention branches in parallel, then MLP branches in parallel (section 3).

    The second branches have the authors' names: norm11, attn1, gamma_1_1, norm21, mlp1, gamma_2_1; further ones count
    on. Branches of a kind read the same input and are dropped independently.

    Args:
        spec: This and the next one: see `ViTBlock`.
        parallel: Branches of each kind.
    """

    def __init__(self, spec: BlockSpec, mlp_ratio: float, parallel: int) -> None:
        super().__init__(spec, mlp_ratio)
        self.branches = [("", ""), *((str(n), f"_{n}") for n in range(1, parallel))]  # ends of names
        for tail, gamma_tail in self.branches[1:]:
            block = ViTBlock(spec, mlp_ratio)
            for name, module in block.named_children():
                if name != "drop_path":
                    self.add_module(name + tail, module)
            for kind in ("gamma_1", "gamma_2"):
                self.register_parameter(kind + gamma_tail, getattr(block, kind))

    def forward(
        self, x: Tensor, size: tuple[int, int], windows: Windows | None, rotation: Rotation | None = None
    ) -> Tensor:
        """``[B, N, C]`` to the same; see `Attention`."""
        for kind, inputs in (("attn", (size, windows, rotation)), ("mlp", ())):
            number, y = (1 if kind == "attn" else 2), x
            for tail, gamma_tail in self.branches:
                branch = getattr(self, kind + tail)(getattr(self, f"norm{number}{tail}")(x), *inputs)  # [B, N, C]
                y = y + self.drop_path(scaled(branch, getattr(self, f"gamma_{number}{gamma_tail}")))
            x = y
        return x


class StemViT(ViT):
    """A ViT of patches of 16 pixels with one of the stems of Table 7.

    Other arguments: see `ViT`.

    Args:
        stem: ``'hmlp'`` or ``'hmlp_ln'``, the hMLP stem with BN or LN; ``'conv'`` or ``'conv_ln'``, four overlapping
            convolutions; ``'linear_bn'``, ``'linear_gelu'``, ``'linear_bn_gelu'``, one convolution with a norm, GELU or
            both; or ``'patch'``, that of `ViT`.

    Raises:
        ValueError: An unknown stem, patches of another size, or channels that do not divide.
    """

    def __init__(self, *args: Any, stem: str = "hmlp", **options: Any) -> None:
        if stem not in STEMS:
            raise OptionError(f"stem: got {stem!r}, expected one of {', '.join(STEMS)}")
        self.stem = stem
        super().__init__(*args, **options)

    def make_stem(self, in_channels: int) -> nn.Module:
        return STEMS[self.stem](in_channels, self.arch.embed_dims, self.arch.patch_size)


class ParallelViT(StemViT):
    """A ViT with parallel branches in every block.

    With `finetune` all branches train (the authors' code: only the first). Other arguments: see `StemViT`.

    Args:
        parallel: Attention branches, then MLP branches, in parallel: 2 to 4.
    """

    family = "three_things"

    def __init__(self, *args: Any, parallel: int = 2, stem: str = "patch", **options: Any) -> None:
        if parallel not in (2, 3, 4):
            raise OptionError(f"parallel: got {parallel!r}, expected one of 2, 3, 4; for 1 there is ViT")
        self.block = partial(ParallelBlock, parallel=parallel)
        super().__init__(*args, stem=stem, **options)
