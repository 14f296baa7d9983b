"""Parallel blocks and stems of "Three things everyone should know about Vision Transformers" (Touvron et al., 2022).

Its third thing, fine-tuning of the attention alone, is `finetune='attention'` of every backbone.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from vitdense.errors import OptionError, check_choice
from vitdense.layers.blocks import LayerNorm2d, PatchEmbed, SyncBatchNorm, pad_to_multiple, scaled
from vitdense.models.vit.model import BlockSpec, ViT, ViTBlock


class ParallelBlock(ViTBlock):
    """Attention branches in parallel, then MLP branches in parallel (section 3).

    The second branches have the authors' names norm11, attn1, gamma_1_1, norm21, mlp1, gamma_2_1; further branches
    count on. Parallel branches read the same input and are dropped independently.
    """

    def __init__(self, spec: BlockSpec, mlp_ratio: float, parallel: int) -> None:
        super().__init__(spec, mlp_ratio)
        self.branches = [("", ""), *((str(n), f"_{n}") for n in range(1, parallel))]  # suffixes of names
        for tail, gamma_tail in self.branches[1:]:
            block = ViTBlock(spec, mlp_ratio)
            for name, module in block.named_children():
                if name != "drop_path":
                    self.add_module(name + tail, module)
            for kind in ("gamma_1", "gamma_2"):
                self.register_parameter(kind + gamma_tail, getattr(block, kind))

    def forward(self, x: Tensor, *args: Any) -> Tensor:
        """``[B, N, C]`` to the same; `args` are the arguments of `Attention` after the tokens."""
        for kind, inputs in (("attn", args), ("mlp", ())):
            number, y = (1 if kind == "attn" else 2), x
            for tail, gamma_tail in self.branches:
                branch = getattr(self, kind + tail)(getattr(self, f"norm{number}{tail}")(x), *inputs)  # [B, N, C]
                y = y + self.drop_path(scaled(branch, getattr(self, f"gamma_{number}{gamma_tail}")))
            x = y
        return x


# Convolutions of the stems of "Three things" Table 7: divisor of the output channels, kernel and stride.
LINEAR = ((1, 16, 16),)
GRAHAM = ((8, 3, 2), (4, 3, 2), (2, 3, 2), (1, 3, 2))
HMLP = ((4, 4, 4), (4, 2, 2), (1, 2, 2))


class ConvStem(nn.Module):
    """Patches of 16x16 pixels by convolutions with GELU between: the stems of "Three things" (section 5, Table 7).

    With `HMLP` or `LINEAR`, no convolution sees across the border of a patch. Masking patches before the stem is then
    the same as masking tokens after it, except for BN statistics in training. The convolutions of `GRAHAM`, the stem of
    LeViT, overlap and have no bias.

    Args:
        patch_size: 16; any other is an error.
        convs: One of the tables above.
        norm: After every convolution: SyncBN, or LN, which does not mix the images of a batch; None for none.
        last_gelu: Whether GELU also follows the last of them.
    """

    def __init__(
        self,
        in_channels: int,
        dim: int,
        patch_size: int,
        convs: Sequence[tuple[int, int, int]],
        norm: Callable[[int], nn.Module] | None,
        last_gelu: bool = False,
    ) -> None:
        super().__init__()
        self.patch_size, divisor = math.prod(stride for *_, stride in convs), max(convs)[0]
        if patch_size != self.patch_size or dim % divisor:
            raise OptionError(
                f"stem: got patches of {patch_size} and {dim} channels, expected patches of {self.patch_size} pixels "
                f"and a multiple of {divisor} channels"
            )
        steps, channels = [], in_channels
        for part, kernel, stride in convs:
            overlap, width = kernel - stride, dim // part
            steps.append(nn.Conv2d(channels, width, kernel, stride, padding=(overlap + 1) // 2, bias=not overlap))
            steps += [*([norm(width)] if norm else []), nn.GELU()]
            channels = width
        self.proj = nn.Sequential(*steps[: None if last_gelu else -1])

    def forward(self, x: Tensor) -> Tensor:
        """Image ``[B, 3, H, W]``, padded right and bottom to whole patches, to ``[B, ceil(H/16), ceil(W/16), C]``."""
        return self.proj(pad_to_multiple(x, self.patch_size)).permute(0, 2, 3, 1)  # [B, h, w, C]


# Name -> stem, from image channels, channels and patch size. The paper does not print the order of norm and GELU in
# linear stems; it is taken from the other stems.
STEMS: dict[str, Callable[[int, int, int], nn.Module]] = {
    "patch": partial(PatchEmbed, norm=None),
    "linear_bn": partial(ConvStem, convs=LINEAR, norm=SyncBatchNorm),
    "linear_gelu": partial(ConvStem, convs=LINEAR, norm=None, last_gelu=True),
    "linear_bn_gelu": partial(ConvStem, convs=LINEAR, norm=SyncBatchNorm, last_gelu=True),
    "conv": partial(ConvStem, convs=GRAHAM, norm=SyncBatchNorm),
    "conv_ln": partial(ConvStem, convs=GRAHAM, norm=LayerNorm2d),
    "hmlp": partial(ConvStem, convs=HMLP, norm=SyncBatchNorm),
    "hmlp_ln": partial(ConvStem, convs=HMLP, norm=LayerNorm2d),
}


class StemViT(ViT):
    """A ViT of patches of 16 pixels with one of the stems of Table 7.

    Other arguments: see `ViT`.

    Args:
        stem: ``'hmlp'`` or ``'hmlp_ln'``, the hMLP stem with BN or LN; ``'conv'`` or ``'conv_ln'``, four overlapping
            convolutions; ``'linear_bn'``, ``'linear_gelu'``, ``'linear_bn_gelu'``, one convolution with a norm, GELU or
            both; or ``'patch'``, the stem of `ViT`.
    """

    def __init__(self, arch: str | Mapping = "deit_small", *, stem: str = "hmlp", **options: Any) -> None:
        check_choice("stem", stem, STEMS)
        self.stem = stem
        super().__init__(arch, **options)

    def make_stem(self, in_channels: int) -> nn.Module:
        return STEMS[self.stem](in_channels, self.arch.embed_dims, self.arch.patch_size)


class ParallelViT(StemViT):
    """A ViT with parallel branches in every block.

    With `finetune` all branches train (the authors' code: only the first). Other arguments: see `StemViT`.

    Args:
        parallel: Attention branches, then MLP branches, in parallel: 2 to 4.
    """

    family = "three_things"

    def __init__(
        self, arch: str | Mapping = "deit_small", *, parallel: int = 2, stem: str = "patch", **options: Any
    ) -> None:
        check_choice("parallel", parallel, (2, 3, 4))
        self.block = partial(ParallelBlock, parallel=parallel)
        super().__init__(arch, stem=stem, **options)
