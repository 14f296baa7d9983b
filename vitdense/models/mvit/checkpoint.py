"""Naming schemes of MViT."""

import re
from collections.abc import Mapping

from torch import Tensor

from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.rename import Layout, Rule, Scheme, Transform
from vitdense.checkpoint.schemes import CLASS_POSITION, CLASS_TOKEN, FLAT_POSITION, Family, mmpretrain, own, same

# Weight of a convolution over one frame, [out, in, 1, h, w], without the time axis.
NO_TIME = Transform(lambda x: x.squeeze(2) if x.ndim == 5 else x, lambda x: x)  # [out, in, h, w]


def _attention_width(state: Mapping[str, Tensor], block: str) -> int:
    key = f"{block}attn.qkv.weight"
    if key not in state or state[key].ndim != 2:
        raise CheckpointMismatchError(f"expected a matrix {key}: its shape shows which stage the block belongs to")
    return state[key].shape[0] // 3


def stages_of_blocks(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Our names by stage for blocks with running numbers. A new stage begins where the width of attention changes."""
    found = {key: (int(match[1]), match[2]) for key in state if (match := re.fullmatch(r"blocks\.(\d+)\.(.+)", key))}
    depth = max((n for n, _ in found.values()), default=-1) + 1
    widths = [_attention_width(state, f"blocks.{n}.") for n in range(depth)]
    paths: list[str] = []
    stage = first = 0
    for n, width in enumerate(widths):
        if width != widths[first]:
            stage, first = stage + 1, n
        paths.append(f"stages.{stage}.blocks.{n - first}.")
    return {key: paths[found[key][0]] + found[key][1] if key in found else key for key in state}


def blocks_of_stages(ours: Mapping[str, Tensor]) -> dict[str, str]:
    """The inverse of `stages_of_blocks`."""
    pattern = re.compile(r"(stages\.(\d+)\.blocks\.(\d+)\.)(.+)")
    found = {key: match for key in ours if (match := pattern.fullmatch(key))}
    paths = {match[1]: (int(match[2]), int(match[3])) for match in found.values()}
    numbers = {path: n for n, path in enumerate(sorted(paths, key=paths.get))}
    return {key: f"blocks.{numbers[found[key][1]]}.{found[key][4]}" if key in found else key for key in ours}


SKIPS = ("shortcut_proj_attn", "shortcut_proj_mlp")  # timm's names of a block's projection, by the branch that has it


def one_skip(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Map both names of timm to our single one."""
    return {key: re.sub(rf"\.({'|'.join(SKIPS)})\.", ".proj.", key) for key in state}


def skip_by_branch(ours: Mapping[str, Tensor]) -> dict[str, str]:
    """The inverse of `one_skip`: the attention has the projection if it changes the width, otherwise the MLP has it."""
    names = {key: key for key in ours}
    for key in ours:
        if match := re.fullmatch(r"(stages\.\d+\.blocks\.\d+\.)proj\.(.+)", key):
            in_attention = _attention_width(ours, match[1]) != ours[f"{match[1]}attn.qkv.weight"].shape[1]
            names[key] = f"{match[1]}{SKIPS[0] if in_attention else SKIPS[1]}.{match[2]}"
    return names


NUMBERED_THROUGH = Layout(stages_of_blocks, blocks_of_stages)
SKIP_BY_BRANCH = Layout(one_skip, skip_by_branch)


def _trunk(block: str, skips: tuple[str, ...] = ("proj",), proj: str = "patch_embed.proj") -> tuple[Rule, ...]:
    plain = ("norm1.*", "norm2.*", "mlp.*", "attn.qkv.*", "attn.proj.*", *(f"attn.norm_{x}.*" for x in "qkv"))
    return (
        Rule(f"{proj}.weight", "patch_embed.proj.weight", NO_TIME),
        Rule(f"{proj}.bias", "patch_embed.proj.bias"),
        *same(*(block + name for name in (*plain, *(f"{skip}.*" for skip in skips)))),
        *(Rule(name, name, NO_TIME) for name in (f"{block}attn.pool_{x}.weight" for x in "qkv")),
        *(Rule(f"{block}attn.{name}", f"{block}attn.bias.{name}") for name in ("rel_pos_h", "rel_pos_w")),
    )


# Plain ViTs have the same names, but their blocks neither pool nor change the width.
_MARKER = r"blocks\.\d+\.(attn\.pool_.|proj)\..+"
_MM = (
    *_trunk("blocks.{i}.", proj="patch_embed.projection"),
    Rule("pos_embed", "absolute_pos_embed.table", FLAT_POSITION),
)
FAMILY = Family(
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
