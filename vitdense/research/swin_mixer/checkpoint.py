"""Naming schemes of Swin-Mixer."""

import math

from torch import Tensor, nn

from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.rename import Rule, Transform
from vitdense.checkpoint.schemes import SWIN_STEM, Family, own
from vitdense.models.swin.checkpoint import official
from vitdense.research.swin_mixer.resize import resize_window_linear


def from_grouped(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The authors' grouped convolution over the tokens of a square window, ``[heads M^2, M^2, 1]`` and ``[heads M^2]``,
    as ours, ``[heads, M, M, M, M]`` (outputs, then inputs) and ``[heads, M, M]``."""
    side = math.isqrt(weight.shape[1])
    if side * side != weight.shape[1] or weight.shape[2:] != (1,) or bias.ndim != 1:
        raise CheckpointMismatchError(
            f"the spatial_mlp has a weight of shape {tuple(weight.shape)} and a bias of shape {tuple(bias.shape)}, "
            f"expected [heads M^2, M^2, 1] and [heads M^2] for a square number of tokens; vitdense names keep others"
        )
    return weight.reshape(-1, *[side] * 4), bias.reshape(-1, side, side)


def to_grouped(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    if weight.shape[1] != weight.shape[2]:
        raise CheckpointMismatchError(
            f"the window of a spatial_mlp.weight of shape {tuple(weight.shape)} is not square and cannot be written "
            f"flat; convert to vitdense"
        )
    return weight.flatten(3).flatten(0, 2)[..., None], bias.flatten()


_THEIRS, _OURS = "layers.{i}.blocks.{j}.spatial_mlp.", "stages.{i}.blocks.{j}.spatial_mlp."
_SPATIAL = Rule(
    (f"{_THEIRS}weight", f"{_THEIRS}bias"), (f"{_OURS}weight", f"{_OURS}bias"), Transform(from_grouped, to_grouped)
)


def fit_window(key: str, value: Tensor, model: nn.Module, is_own: bool, rule: str) -> tuple[Tensor, str]:
    """A tensor of a checkpoint for the window of the model; see `Family.fit`."""
    target = model.state_dict()[key]
    if ".spatial_mlp." in key and value.numel() and value.ndim == target.ndim and value.dtype.is_floating_point:
        value = resize_window_linear(value, tuple(target.shape[1:3]), rule)
    return value, ""


FAMILY = Family(
    (own("spatial_mlp.*"), *official((_SPATIAL,))), markers=(*SWIN_STEM, r".+\.spatial_mlp\.weight"), fit=fit_window
)
