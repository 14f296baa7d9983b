"""Naming schemes of MViT."""

import re
from collections.abc import Mapping
from itertools import pairwise

from torch import Tensor

from vitdense.weights.errors import CheckpointMismatchError
from vitdense.weights.families.common import CLASS_POSITION, CLASS_TOKEN, FLAT_POSITION, Family, mmpretrain, own, same
from vitdense.weights.rename import Layout, Rule, Scheme, Transform


def without_time(x: Tensor) -> Tensor:
    """The weight of a convolution over time and space, ``[out, in, 1, h, w]``, as one over space; others unchanged.

    Raises:
        CheckpointMismatchError: It spans more than one frame.
    """
    if x.ndim != 5:
        return x
    if x.shape[2] != 1:
        raise CheckpointMismatchError(
            f"a convolution weight has shape {tuple(x.shape)}, expected 1 frame (third axis): this is a video model"
        )
    return x.squeeze(2)  # [out, in, h, w]


NO_TIME = Transform(without_time, lambda x: x)  # whoever reads a time axis also reads weights without it


def _attention_width(state: Mapping[str, Tensor], block: str) -> int:
    """Channels of the attention of the block with this path."""
    key = f"{block}attn.qkv.weight"
    if key not in state:
        raise CheckpointMismatchError(f"missing key {key}: its shape tells where a stage begins")
    shape = tuple(state[key].shape)
    if len(shape) != 2 or shape[0] % 3:
        raise CheckpointMismatchError(f"{key} has shape {shape}, expected [3 * C, C'] for an attention of width C")
    return shape[0] // 3


def stages_of_blocks(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Our names, by stages, for blocks that are numbered through. All attentions of a stage have the same width; it
    doubles from stage to stage.

    Raises:
        CheckpointMismatchError: A block or its width is missing, or a width neither stays nor doubles.
    """
    found = {key: (int(match[1]), match[2]) for key in state if (match := re.fullmatch(r"blocks\.(\d+)\.(.+)", key))}
    numbers = {n for n, _ in found.values()}
    paths: list[str] = []
    stage = first = width_before = 0
    for n in range(max(numbers, default=-1) + 1):
        if n not in numbers:
            raise CheckpointMismatchError(f"no key starts with blocks.{n}., but later blocks are in the checkpoint")
        width = _attention_width(state, f"blocks.{n}.")
        if n and width != width_before:
            if width != 2 * width_before:
                raise CheckpointMismatchError(
                    f"blocks.{n}.attn.qkv.weight has width {width} after width {width_before}, expected the same or "
                    f"twice as much"
                )
            stage, first = stage + 1, n
        width_before = width
        paths.append(f"stages.{stage}.blocks.{n - first}.")
    return {key: paths[found[key][0]] + found[key][1] if key in found else key for key in state}


def blocks_of_stages(ours: Mapping[str, Tensor]) -> dict[str, str]:
    """The inverse of `stages_of_blocks`.

    Raises:
        CheckpointMismatchError: A stage or a block is missing between others.
    """
    pattern = re.compile(r"stages\.(\d+)\.blocks\.(\d+)\.(.+)")
    found = {key: (int(match[1]), int(match[2]), match[3]) for key in ours if (match := pattern.fullmatch(key))}
    blocks = sorted({(stage, block) for stage, block, _ in found.values()})
    for (stage, block), place in pairwise([(-1, 0), *blocks]):
        if place not in ((stage, block + 1), (stage + 1, 0)):
            raise CheckpointMismatchError(
                f"the checkpoint has stages.{place[0]}.blocks.{place[1]}, but the block before it is missing"
            )
    numbers = {place: n for n, place in enumerate(blocks)}
    return {key: f"blocks.{numbers[found[key][:2]]}.{found[key][2]}" if key in found else key for key in ours}


SKIPS = ("shortcut_proj_attn", "shortcut_proj_mlp")  # timm's names of a block's projection, by the branch that has it


def one_skip(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Our name for both of timm's."""
    return {key: re.sub(rf"\.({'|'.join(SKIPS)})\.", ".proj.", key) for key in state}


def skip_by_branch(ours: Mapping[str, Tensor]) -> dict[str, str]:
    """The inverse of `one_skip`: the attention has the projection if it changes the width, otherwise the MLP has it.

    Raises:
        CheckpointMismatchError: The attention's width is missing.
    """
    names = {key: key for key in ours}
    for key in ours:
        if match := re.fullmatch(r"(stages\.\d+\.blocks\.\d+\.)proj\.(.+)", key):
            in_attention = _attention_width(ours, match[1]) != ours[f"{match[1]}attn.qkv.weight"].shape[1]
            names[key] = f"{match[1]}{SKIPS[0] if in_attention else SKIPS[1]}.{match[2]}"
    return names


NUMBERED_THROUGH = Layout(stages_of_blocks, blocks_of_stages)
SKIP_BY_BRANCH = Layout(one_skip, skip_by_branch)


def _trunk(block: str, skips: tuple[str, ...] = ("proj",), proj: str = "patch_embed.proj") -> tuple[Rule, ...]:
    """Patch embedding and blocks; `block` is the path of a block."""
    plain = ("norm1.*", "norm2.*", "mlp.*", "attn.qkv.*", "attn.proj.*", *(f"attn.norm_{x}.*" for x in "qkv"))
    return (
        Rule(f"{proj}.weight", "patch_embed.proj.weight", NO_TIME),
        Rule(f"{proj}.bias", "patch_embed.proj.bias"),
        *same(*(block + name for name in (*plain, *(f"{skip}.*" for skip in skips)))),
        *(Rule(name, name, NO_TIME) for name in (f"{block}attn.pool_{x}.weight" for x in "qkv")),
        *(Rule(f"{block}attn.{name}", f"{block}attn.bias.{name}") for name in ("rel_pos_h", "rel_pos_w")),
    )


# Plain ViTs have the same names, but no block of theirs pools or changes its width.
_MARKER = r"blocks\.\d+\.(attn\.pool_.|proj)\..+"
_MM = (
    *_trunk("blocks.{i}.", proj="patch_embed.projection"),
    Rule("pos_embed", "absolute_pos_embed.table", FLAT_POSITION),
)
MVIT = Family(
    (
        own(
            *(f"attn.pool_{x}.weight" for x in "qkv"),
            *(f"attn.norm_{x}.*" for x in "qkv"),
            *("attn.bias.rel_pos_h", "attn.bias.rel_pos_w", "proj.*"),
            outside=("tokens.cls_token", "tokens.cls_position"),
        ),
        Scheme(
            "official",
            (*_trunk("blocks.{i}."), CLASS_POSITION, CLASS_TOKEN, *same("norm.*"), Rule("head.projection.*", "head.*")),
            _MARKER,
            wrapper="model_state",
            layout=NUMBERED_THROUGH,
        ),
        Scheme(
            "detectron2",  # a backbone only; its code reads the authors' classifiers unchanged
            (*_trunk("blocks.{i}."), CLASS_POSITION, Rule("scale{i+2}_norm.*", "norm{i}.*")),
            _MARKER,
            prefix="backbone.bottom_up.",
            wrapper="model",
            layout=NUMBERED_THROUGH,
        ),
        Scheme(
            "timm",
            (
                *_trunk("stages.{i}.blocks.{j}.", SKIPS),
                *(CLASS_POSITION, CLASS_TOKEN, *same("norm.*"), Rule("head.fc.*", "head.*")),
            ),
            layout=SKIP_BY_BRANCH,
        ),
        *mmpretrain(_MM, NUMBERED_THROUGH),
    )
)
