"""Stems of "Three things everyone should know about Vision Transformers" (Touvron et al., ECCV 2022, section 5)."""

import math
from collections.abc import Callable, Sequence
from functools import partial

from timm.layers import LayerNorm2d
from torch import Tensor, nn

from vitdense.errors import OptionError
from vitdense.layers.blocks import PatchEmbed, SyncBatchNorm, pad_to_multiple

# Convolutions of the stems of "Three things" Table 7: what divides the channels of their result, kernel and stride.
LINEAR = ((1, 16, 16),)
GRAHAM = ((8, 3, 2), (4, 3, 2), (2, 3, 2), (1, 3, 2))
HMLP = ((4, 4, 4), (4, 2, 2), (1, 2, 2))


class ConvStem(nn.Module):
    """Patches of 16x16 pixels by convolutions with GELU between: the stems of "Three things" (section 5, Table 7).

    With `HMLP` or `LINEAR`, no convolution sees across the border of a patch: masking patches before the stem and
    masking tokens after it are the same. (Not with statistics of BN in training.) Those of `GRAHAM`, the stem of LeViT,
    overlap, and have no bias.

    Args:
        in_channels: Image channels.
        dim: Channels of the result.
        patch_size: 16; any other is an error.
        convs: One of the tables above.
        norm: After every convolution: SyncBN, or LN, which does not mix the images of a batch; None for none.
        last_gelu: Whether GELU also follows the last of them.

    Raises:
        ValueError: Patches of another size, or channels that do not divide.
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


# By name; all take image channels, channels and the patch size. The order of norm and GELU of linear stems, which the
# paper does not print, is that of the others.
STEMS: dict[str, Callable[[int, int, int], nn.Module]] = {
    "patch": partial(PatchEmbed, norm=False),
    "linear_bn": partial(ConvStem, convs=LINEAR, norm=SyncBatchNorm),
    "linear_gelu": partial(ConvStem, convs=LINEAR, norm=None, last_gelu=True),
    "linear_bn_gelu": partial(ConvStem, convs=LINEAR, norm=SyncBatchNorm, last_gelu=True),
    "conv": partial(ConvStem, convs=GRAHAM, norm=SyncBatchNorm),
    "conv_ln": partial(ConvStem, convs=GRAHAM, norm=LayerNorm2d),
    "hmlp": partial(ConvStem, convs=HMLP, norm=SyncBatchNorm),
    "hmlp_ln": partial(ConvStem, convs=HMLP, norm=LayerNorm2d),
}
