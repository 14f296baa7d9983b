"""Naming schemes of Swin, and the parts of them that Swin V2 shares."""

import math
import re
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.rename import Rule, Scheme, Transform
from vitdense.checkpoint.schemes import (
    FLAT_POSITION,
    REBUILT,
    SWIN_STEM,
    Family,
    mmpretrain,
    own,
    read_only,
    same,
    square,
)
from vitdense.layers.bias import log_spaced_offsets, relative_position_index


def from_unfold(x: Tensor) -> Tensor:
    """Reorder the input channels of a patch merging, ``[out, 4 C]`` or ``[4 C]``, from ``nn.Unfold`` order to the
    authors' order.

    Unfold puts channel c of neighbour k (2 * row + column) at ``4 c + k``. The authors concatenate the neighbours
    (0, 0), (1, 0), (0, 1), (1, 1), each with all channels. mmdet, mmseg and mmpretrain use Unfold.
    """
    blocks = x.unflatten(-1, (-1, 4))[..., [0, 2, 1, 3]]  # [..., C, 4]
    return blocks.transpose(-1, -2).flatten(-2)  # [..., 4*C]


def to_unfold(x: Tensor) -> Tensor:
    """The inverse of `from_unfold`."""
    blocks = x.unflatten(-1, (4, -1))[..., [0, 2, 1, 3], :]  # [..., 4, C]
    return blocks.transpose(-1, -2).flatten(-2)  # [..., 4*C]


def position_grid(x: Tensor) -> Tensor:
    """Our position embedding from the authors', ``[1, C, h, w]`` or, in classifiers, ``[1, h * h, C]``."""
    return x.permute(0, 2, 3, 1).contiguous() if x.ndim == 4 else FLAT_POSITION.forward(x)  # [1, h, w, C]


UNFOLD = Transform(from_unfold, to_unfold)
TABLE = square(0, "relative_position_bias_table")  # [(2w - 1)^2, heads] and [2w - 1, 2w - 1, heads]
DENSE_POSITION = Transform(position_grid, lambda x: x.permute(0, 3, 1, 2).contiguous())
CLASSIFIER_POSITION = Transform(position_grid, FLAT_POSITION.inverse)
# torchvision keeps the index of a window flat.
FLAT_INDEX = Transform(lambda x: x.unflatten(0, (math.isqrt(x.numel()), -1)), lambda x: x.flatten())


def window_buffers(
    ours: Mapping[str, Tensor],
    is_wanted: Callable[[str], bool],
    windows: Sequence[int] | None,
    pretrained: Sequence[int] | None,
) -> dict[str, Tensor]:
    """Buffers of window attention, by our names; for the arguments see `Family.buffers`."""
    made = {}
    for key in ours:
        bias = key.removesuffix("qkv.weight") + "bias."
        wanted = [x for x in ("index", "relative_coords_table") if is_wanted(bias + x)]
        if not key.endswith(".attn.qkv.weight") or not wanted:
            continue
        table = ours.get(f"{bias}relative_position_bias_table")
        stage = int(key.split(".")[1])
        if table is not None:
            window = tuple((side + 1) // 2 for side in table.shape[:2])
        elif windows:
            window = (_of_stage(windows, stage),) * 2
        else:
            raise CheckpointMismatchError(
                "files of the new scheme contain buffers of the window, which the checkpoint does not show: give "
                "--window-size 8, or one per stage, and --pretrained-window-size if it differs"
            )
        if "index" in wanted:
            made[f"{bias}index"] = relative_position_index(window)  # [N, N]
        if "relative_coords_table" in wanted:
            side = _of_stage(pretrained or [0], stage)
            made[f"{bias}relative_coords_table"] = log_spaced_offsets(window, (side, side) if side else window)
    return made


def _of_stage(values: Sequence[int], stage: int) -> int:
    if len(values) == 1:
        return values[0]
    if stage >= len(values):
        raise CheckpointMismatchError(f"windows: got {len(values)}, expected one, or one for each stage")
    return values[stage]


def stem(proj: str = "patch_embed.proj", norm: str = "patch_embed.norm") -> tuple[Rule, ...]:
    """Patch embedding."""
    return Rule(f"{proj}.*", "patch_embed.proj.*"), Rule(f"{norm}.*", "patch_embed.norm.*")


def block(path: str, attn: str = "attn", fc1: str = "mlp.fc1", fc2: str = "mlp.fc2") -> tuple[Rule, ...]:
    """Rules for blocks of Swin and Swin V2. `path` is the path of a block; the others are names inside of it."""
    ours = "stages.{i}.blocks.{j}."
    names = {"norm1": "norm1", "norm2": "norm2", f"{attn}.proj": "attn.proj", fc1: "mlp.fc1", fc2: "mlp.fc2"}
    return tuple(Rule(f"{path}{theirs}.*", f"{ours}{name}.*") for theirs, name in names.items())


def merge(path: str, unfold: Transform | None = None, unfold_norm: Transform | None = None) -> tuple[Rule, ...]:
    """Rules for patch merging at `path`; ours has the index of the stage before it."""
    return (
        Rule(f"{path}reduction.weight", "stages.{i}.downsample.reduction.weight", unfold),
        Rule(f"{path}norm.*", "stages.{i}.downsample.norm.*", unfold_norm),
    )


def official(attention: tuple[Rule, ...]) -> tuple[Scheme, Scheme]:
    """The authors' classifier, and their detection and segmentation code. detectron2's port has the same names."""
    trunk = (*stem(), *block("layers.{i}.blocks.{j}."), *attention, *merge("layers.{i}.downsample."))
    mask = Rule("layers.{i}.blocks.{j}.attn_mask", "stages.{i}.blocks.{j}.attn_mask")
    position, ours = "absolute_pos_embed", "absolute_pos_embed.table"
    # SimMIM's backbone has a mask token.
    classifier = (*trunk, mask, *same("norm.*", "head.*", "mask_token"), Rule(position, ours, CLASSIFIER_POSITION))
    dense = (*trunk, *same("norm{i}.*"), Rule(position, ours, DENSE_POSITION))
    # timm has the same names for blocks, but no downsample in layer 0. A model of one stage has no downsample at all.
    marker = r"(layers\.0\.downsample|norm0)\..+"
    return tuple(Scheme("official", rules, marker, wrapper="model") for rules in (classifier, dense))


def timm(attention: tuple[Rule, ...]) -> Scheme:
    """timm, which keeps no buffers in its files."""
    attention = tuple(
        rule for old in attention for rule in (read_only(old) if re.fullmatch(REBUILT, old.ours) else (old,))
    )
    # Patch merging is at the start of the next stage and has its index.
    trunk = (*stem(), *block("layers.{i}.blocks.{j}."), *attention, *merge("layers.{i+1}.downsample."))
    return Scheme("timm", (*trunk, *same("norm.*"), Rule("head.fc.*", "head.*")))


def torchvision(attention: tuple[Rule, ...]) -> Scheme:
    """torchvision."""
    trunk = (
        *stem("features.0.0", "features.0.2"),
        *block("features.{2i+1}.{j}.", fc1="mlp.0", fc2="mlp.3"),
        *attention,
        *merge("features.{2i+2}."),
    )
    return Scheme("torchvision", (*trunk, *same("norm.*", "head.*")))


def mm_trunk(attention: tuple[Rule, ...], merging: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """The trunk of mmdet, mmseg and mmpretrain."""
    blocks = block("stages.{i}.blocks.{j}.", "attn.w_msa", "ffn.layers.0.0", "ffn.layers.1")
    return (*stem("patch_embed.projection"), *blocks, *attention, *merging)


def _attention(path: str, index: Transform | None = None) -> tuple[Rule, ...]:
    ours = "stages.{i}.blocks.{j}.attn."
    return (
        Rule(f"{path}qkv.*", f"{ours}qkv.*"),
        Rule(f"{path}relative_position_bias_table", f"{ours}bias.relative_position_bias_table", TABLE),
        Rule(f"{path}relative_position_index", f"{ours}bias.index", index),
    )


_MM = mm_trunk(_attention("stages.{i}.blocks.{j}.attn.w_msa."), merge("stages.{i}.downsample.", UNFOLD, UNFOLD))
FAMILY = Family(
    (
        own("attn.bias.relative_position_bias_table", "attn.v.*", "attn.features"),
        *official(_attention("layers.{i}.blocks.{j}.attn.")),
        timm(_attention("layers.{i}.blocks.{j}.attn.")),
        torchvision(_attention("features.{2i+1}.{j}.attn.", FLAT_INDEX)),
        Scheme(
            "mmdet",  # also mmseg, mmpretrain's dense backbone, and classifiers from mmdet's converter
            (
                *_MM,
                *same("norm{i}.*", "norm.*", "head.*"),
                *read_only(*same("stages.{i}.blocks.{j}.attn_mask")),
                Rule("absolute_pos_embed", "absolute_pos_embed.table", FLAT_POSITION),
            ),
            prefix="backbone.",
            wrapper="state_dict",
        ),
        *mmpretrain(_MM),
    ),
    markers=SWIN_STEM,
    buffers=window_buffers,
)
