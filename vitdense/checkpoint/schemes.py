"""Parts of naming schemes that families share: allow-lists, helpers for rename tables, flat position embeddings."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.rename import Layout, Rule, Scheme, Transform
from vitdense.families import HEADS, folders_with
from vitdense.seams import merged

# Keys that a checkpoint may have besides a backbone: regular expressions of our names.
CLASSIFIER = r"(norm|fc_norm|pre_logits|head|head_dist|attn_pool)\..+"
PRETRAINING = r"mask_token|decoder_.+|local_cls_norm\..+"  # masked autoencoding; the local crops of DINOv3
PERIODS = r"rope\.periods"  # of rotary positions; computed by a formula, and rounded by the authors of DINOv3
TOKENS = r"tokens\..+"
# Buffers that the model makes from the window or the image size.
REBUILT = (
    r".+\.attn\.bias\.(index|relative_coords_table)|.+\.attn_mask|(rope_win|rope_glb|.+\.attn\.rope)\.freqs_(cos|sin)"
)
# No classification checkpoint has output norms; `out_indices` decides which ones a dense model has.
OUTPUT_NORMS = r"norm\d+\..+"
LORA = r".+\.lora\..+"  # updates; a pretrained model has none
# Swin's stem, which Swin V2 and Swin-Mixer have too. An MViT has no norm in it, a NAT two convolutions.
SWIN_STEM = (r"patch_embed\.proj\.weight", r"patch_embed\.norm\.weight")


@dataclass(frozen=True)
class Family:
    """How checkpoints of a backbone family look.

    Attributes:
        schemes: Known naming schemes; the first one is ours.
        markers: Regular expressions of our names, before the layout of a scheme. Each must match a key. They are for
            keys that all models of the family have, and no models of other families with similar names.
        ignored: Regular expressions of our names: keys of a checkpoint that the model may lack.
        may_be_missing: Regular expressions of our names: all keys that match one may be missing, but not only some.
        parts_in_timm: Fields of our arch for a model of timm that its parameters do not show; empty for models of other
            families. Raises a `CheckpointMismatchError` if our model would compute something else.
        check: Takes the model and a checkpoint with our names. Raises a `CheckpointMismatchError` if the model would
            compute something else, although the parameters fit.
        buffers: Takes a checkpoint with our names, whether a key of ours is wanted, the windows, and the windows of
            pretraining, see `convert`. Returns buffers of some schemes' files that the checkpoint lacks.
        fit: Takes our key, a tensor of a checkpoint, the model, whether the checkpoint has our names, and the rule for
            resizing. Returns the tensor in the size of the model, with a row for every query or, in files of other
            projects, every class; and a text for the report.
    """

    schemes: tuple[Scheme, ...]
    markers: tuple[str, ...] = ()
    ignored: tuple[str, ...] = (CLASSIFIER, OUTPUT_NORMS, PRETRAINING, REBUILT)
    may_be_missing: tuple[str, ...] = (OUTPUT_NORMS, LORA)
    parts_in_timm: Callable[[nn.Module], dict[str, Any]] | None = None
    check: Callable[[nn.Module, Mapping[str, Tensor]], None] | None = None
    buffers: Callable[..., dict[str, Tensor]] | None = None
    fit: Callable[[str, Tensor, nn.Module, bool, str], tuple[Tensor, str]] | None = None


def same(*names: str) -> tuple[Rule, ...]:
    """Rules for keys that have the same name in both schemes."""
    return tuple(Rule(name, name) for name in names)


def prefixed(prefix: str, rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    return tuple(replace(rule, theirs=prefix + rule.theirs) for rule in rules)


def read_only(*rules: Rule) -> tuple[Rule, ...]:
    """The rules for reading only: legacy keys, never written."""
    return tuple(replace(rule, read_only=True) for rule in rules)


def own(*in_block: str, outside: tuple[str, ...] = ("patch_embed.norm.*", "stages.{i}.downsample.*")) -> Scheme:
    """Our own names for a backbone of stages: the common ones, and these in blocks and outside of blocks."""
    block = ("norm1.*", "norm2.*", "attn.qkv.*", "attn.proj.*", "mlp.*", *in_block)
    blocks = (f"stages.{{i}}.blocks.{{j}}.{name}" for name in block)
    everywhere = ("patch_embed.proj.*", "absolute_pos_embed.table", "norm{i}.*", "norm.*", "head.*", "mask_token")
    return Scheme("vitdense", same(*everywhere, *blocks, *outside), wrapper="state_dict")


def mmpretrain(trunk: tuple[Rule, ...], layout: Layout | None = None) -> tuple[Scheme, Scheme]:
    """mmpretrain's classifier, which uses the output norm of the last stage, and its dense backbone."""
    head = (Rule("backbone.norm3.*", "norm.*"), Rule("head.fc.*", "head.*"))
    first_releases = read_only(
        Rule("backbone.norm.*", "norm.*"),
        Rule("backbone.stages.{i}.blocks.{j}.attn.attn_mask", "stages.{i}.blocks.{j}.attn_mask"),
    )
    classifier = (*prefixed("backbone.", trunk), *head, *first_releases)
    dense = (*trunk, *same("norm{i}.*"))
    return (
        Scheme("mmpretrain", classifier, wrapper="state_dict", layout=layout),
        Scheme("mmpretrain", dense, prefix="backbone.", wrapper="state_dict", layout=layout),
    )


# For a patch embedding without a bias: ours gets a bias of zero.
NO_BIAS = Transform(
    lambda weight, *bias: (weight, *(bias or (weight.new_zeros(weight.shape[:1]),))),
    lambda weight, *bias: (weight, *(x for x in bias if x.any())),
)


def patch_bias_optional(theirs: str) -> Rule:
    """A patch embedding that may have no bias."""
    names = tuple((f"{theirs}.{x}", f"patch_embed.proj.{x}") for x in ("weight", "bias"))
    return Rule(*zip(*names), NO_BIAS, optional=(names[1][0],))


def square(axis: int, what: str) -> Transform:
    """Transform of a flat table of a square grid to ours, with an axis each for height and width, and back.

    The flat `axis` is followed by the channels; messages name the table by `what`.
    """

    def unflatten(x: Tensor) -> Tensor:
        side = math.isqrt(x.shape[axis]) if x.ndim == axis + 2 else 0
        if side == 0 or side * side != x.shape[axis]:
            raise CheckpointMismatchError(
                f"the {what} has shape {tuple(x.shape)}, expected a square number of rows; vitdense names keep other "
                f"grids"
            )
        return x.unflatten(axis, (side, side))

    def flatten(x: Tensor) -> Tensor:
        if x.shape[axis] != x.shape[axis + 1]:
            raise CheckpointMismatchError(
                f"the {what} of shape {tuple(x.shape)} is not square and cannot be written flat; convert to vitdense"
            )
        return x.flatten(axis, axis + 1)

    return Transform(unflatten, flatten)


FLAT_POSITION = square(1, "absolute position embedding")  # [1, h * h, C] and [1, h, h, C]


def split_position(x: Tensor) -> tuple[Tensor, ...]:
    """A flat position embedding ``[1, E + h * h, C]`` as the grid and the E rows of the class and distillation token.

    E is 0, 1 or 2: at most one of three successive numbers is a square.
    """
    rows = x.shape[1] if x.ndim == 3 else 0
    extra = next((n for n in (0, 1, 2) if rows > n and math.isqrt(rows - n) ** 2 == rows - n), 0)
    return FLAT_POSITION.forward(x[:, extra:] if extra else x), *x[:, :extra].split(1, dim=1)[:extra]


def join_position(table: Tensor, *of_tokens: Tensor) -> Tensor:
    return torch.cat([*of_tokens, FLAT_POSITION.inverse(table)], dim=1)  # [1, E+h*h, C]


TOKEN_POSITION = Transform(split_position, join_position)


def position(*of_tokens: str) -> Rule:
    """A flat position embedding, which may start with rows of tokens."""
    return Rule("pos_embed", ("absolute_pos_embed.table", *of_tokens), TOKEN_POSITION, optional=of_tokens)


CLASS_POSITION = position("tokens.cls_position")
CLASS_TOKEN = Rule("cls_token", "tokens.cls_token")
PATCH = same("patch_embed.proj.weight", "patch_embed.proj.bias")


class _Naming(Mapping[str, Family]):
    """Family -> its naming schemes, `FAMILY` in its ``checkpoint.py``, imported on demand.

    Heads with naming schemes are families too: in `HEADS` of the ``checkpoint.py`` in a folder that `HEADS` of
    ``vitdense/models/__init__.py`` names, or in modules of `seams.Extension.schemes`.
    """

    def __init__(self) -> None:
        folders = folders_with("checkpoint")
        modules = {family: f"{folders[folder]}.checkpoint" for family, folder in HEADS.items()} | merged("schemes")
        self._modules = {family: f"{folder}.checkpoint" for family, folder in folders.items()} | modules
        self._heads = modules.keys()

    def __getitem__(self, family: str) -> "Family":
        module = import_module(self._modules[family])
        return module.HEADS[family] if family in self._heads else module.FAMILY

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


NAMING: Mapping[str, Family] = _Naming()
