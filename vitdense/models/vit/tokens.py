"""Plain ViTs for heads that read tokens: with all prefix tokens, or with the last blocks run by the head."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from vitdense.errors import OptionError
from vitdense.models.vit.model import JointStep, ViT


class Tokens(NamedTuple):
    """A map of a ViT and the tokens before it."""

    map: Tensor  # [B, C, h, w]
    prefix: Tensor  # class token and registers, [B, E, C]


class Joint(NamedTuple):
    """Tokens before the last blocks of a ViT, and these blocks."""

    map: Tensor  # [B, C, h, w]
    prefix: Tensor  # class token and registers, [B, E, C]
    join: Callable[[int], list[JointStep]]  # makes the blocks for a number of queries; see `ViT.join`
    norm: nn.Module  # the last norm, which follows every block that something is predicted from


class TokenViT(ViT):
    """A `ViT` whose outputs are `Tokens`: a map with all prefix tokens, registers too, under the same norm.

    PMT's taps (arXiv 2603.25398): ``out_norm='shared'``, ``frozen_stages='all'``.
    """

    def to_feature_map(self, x: Tensor, size: tuple[int, int], index: int) -> Tokens:
        """`Tokens` of ``[B, E + h*w, C]``."""
        return _split(self.output_norm(index)(x), size)


class JointViT(ViT):
    """A `ViT` whose last blocks are run by a head with queries among the tokens, for EoMT (CVPR 2025, section 3.2).

    The one output is a `Joint`. Arguments not listed here: see `ViT`.

    Args:
        num_joint_blocks: Blocks in which queries take part: 3 of 12, 4 of 24, 5 of 40.
    """

    def __init__(self, num_joint_blocks: int, **options: Any) -> None:
        super().__init__(**{"out_norm": "shared", "drop_path_rate": 0.0, **options})
        depth = self.out_indices[-1] + 1
        if not 0 < num_joint_blocks < depth or self.norm is None:
            raise OptionError(
                f"num_joint_blocks, out_norm: got {num_joint_blocks}, {self.out_norm!r}, expected 1 to {depth - 1}, "
                f"and the norm of the checkpoint, 'final' or 'shared'"
            )
        self.num_joint_blocks = num_joint_blocks

    def forward_patches(self, x: Tensor) -> tuple[Joint]:
        """Patches ``[B, h, w, C]`` to the input of a head."""
        x, size, steps = self.unroll(x)  # [B, E + h*w, C]
        for step in steps[: -self.num_joint_blocks]:
            x = step(x)  # [B, E + h*w, C]
        join = partial(self.join, x, size, self.num_joint_blocks)
        return (Joint(*_split(x, size), join, self.output_norm(self.out_indices[-1])),)


def _split(x: Tensor, size: tuple[int, int]) -> Tokens:
    """Split ``[B, E + h*w, C]`` into the row-major map and the tokens before it."""
    num_patches = size[0] * size[1]
    of_map = x[:, -num_patches:].unflatten(1, size)  # [B, h, w, C]
    return Tokens(of_map.permute(0, 3, 1, 2), x[:, :-num_patches])
