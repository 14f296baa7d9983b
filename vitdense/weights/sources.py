"""Published checkpoints as tables: the naming schemes of every family, and weights by name.

A scheme's rules lead from its names to ours and back, without loss. Our names are those of the model's own state
dict, and beside them those of `CLASSIFIER` and `REBUILT`: what a checkpoint may hold that a backbone does not.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitdense.weights.errors import CheckpointMismatchError
from vitdense.weights.rename import Change, Layout, Rule, relabel, rename, reverse

# What may be left over, and why: of a classifier; rebuilt from the window or the image size.
CLASSIFIER = r"(norm|head)\..+|cls_token|absolute_pos_embed\.class_token"
REBUILT = r".+\.attn\.bias\.(index|relative_coords_table)|.+\.attn_mask"
# Output norms: absent from every classification checkpoint, and more or fewer by `out_indices`.
OUTPUT_NORMS = r"norm\d+\..+"


@dataclass(frozen=True)
class Scheme:
    """A naming scheme, or one form of it (a name may stand more than once, as classifier and as dense backbone).

    Attributes:
        name: Whose names they are.
        rules: Their rename table.
        needs: Keys without which it is not this scheme, if it merges patches at all: they tell schemes apart whose
            names look alike.
        prefix: What users of the scheme's files expect before the names of a backbone alone.
        wrapper: The entry of a torch file under which they expect the tensors; None for the file itself.
        layout: What lies between the rules and our names; None where the rules lead to our names.
    """

    name: str
    rules: tuple[Rule, ...]
    needs: tuple[str, ...] = ()
    prefix: str = ""
    wrapper: str | None = None
    layout: Layout | None = None

    def to_ours(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A state dict of this scheme by our names.

        Raises:
            CheckpointMismatchError: See `rename`; or the shapes do not tell what no name tells.
        """
        state = rename(state, self.rules)
        return relabel(state, self.layout.forward(state)) if self.layout else state

    def names_for_rules(self, ours: Mapping[str, Tensor]) -> dict[str, str]:
        """Of every key of a state dict by our names, the name that the reversed rules know, if any.

        Raises:
            CheckpointMismatchError: The state dict does not tell what the scheme's names say.
        """
        return self.layout.inverse(ours) if self.layout else {key: key for key in ours}

    def from_ours(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inverse of `to_ours`."""
        return rename(relabel(ours, self.names_for_rules(ours)), reverse(self.rules))


def from_unfold(x: Tensor) -> Tensor:
    """Reorder the input of a patch merging from ``nn.Unfold`` order to the authors'.

    Unfold lists channel c and neighbour k (2 * row + column) at ``4 c + k``; the authors' code lists neighbour
    blocks (0, 0), (1, 0), (0, 1), (1, 1) of all channels each. mmdet, mmseg and mmpretrain use the former.

    Args:
        x: ``[out, 4 C]`` weight or ``[4 C]`` norm parameter.
    """
    blocks = x.unflatten(-1, (-1, 4))[..., [0, 2, 1, 3]]  # [..., C, 4]
    return blocks.transpose(-1, -2).flatten(-2)  # [..., 4*C]


def to_unfold(x: Tensor) -> Tensor:
    """The inverse of `from_unfold`."""
    blocks = x.unflatten(-1, (4, -1))[..., [0, 2, 1, 3], :]  # [..., 4, C]
    return blocks.transpose(-1, -2).flatten(-2)  # [..., 4*C]


def square_table(x: Tensor) -> Tensor:
    """Flat bias table ``[(2w - 1)^2, heads]`` of a square window to ours, ``[2w - 1, 2w - 1, heads]``.

    Raises:
        CheckpointMismatchError: No square window has so many rows.
    """
    side = math.isqrt(x.shape[0]) if x.ndim == 2 else 0
    if side % 2 == 0 or side * side != x.shape[0]:
        raise CheckpointMismatchError(
            f"a relative_position_bias_table has shape {tuple(x.shape)}, expected [(2w - 1)^2, heads]: flat tables "
            f"are read as those of square windows only, for they do not tell height from width; under vitdense's "
            f"names a table carries its window"
        )
    return x.unflatten(0, (side, side))  # [2w-1, 2w-1, heads]


def flat_table(x: Tensor) -> Tensor:
    """The inverse of `square_table`.

    Raises:
        CheckpointMismatchError: The window is not square, which no reader of the flat table would know.
    """
    if x.shape[0] != x.shape[1]:
        raise CheckpointMismatchError(
            f"a table of a {(x.shape[0] + 1) // 2}x{(x.shape[1] + 1) // 2} window cannot be written flat, for it would "
            f"be read as another window's; only vitdense's names carry both sides"
        )
    return x.flatten(0, 1)  # [(2w-1)^2, heads]


def dense_position(x: Tensor) -> Tensor:
    """Absolute position embedding of the authors' dense code, ``[1, C, h, w]``, to ours, ``[1, h, w, C]``."""
    if x.ndim != 4:
        raise CheckpointMismatchError(
            f"absolute_pos_embed has shape {tuple(x.shape)}, expected [1, C, h, w] beside the names of a dense backbone"
        )
    return x.permute(0, 2, 3, 1).contiguous()  # [1, h, w, C]


def flat_position(x: Tensor) -> Tensor:
    """Absolute position embedding of the authors' classifier, ``[1, h * w, C]`` of a square image, to ours."""
    side = math.isqrt(x.shape[1]) if x.ndim == 3 else 0
    if side == 0 or side * side != x.shape[1]:
        raise CheckpointMismatchError(
            f"the absolute position embedding has shape {tuple(x.shape)}, expected [1, h * h, C]: flat positions are "
            f"read as those of a square image only, for they do not tell height from width"
        )
    return x.unflatten(1, (side, side))  # [1, h, w, C]


def position_with_class(x: Tensor) -> tuple[Tensor, ...]:
    """As `flat_position`, of ``[1, 1 + h * w, C]``, whose first row is the class token's: the map, and that row if any.

    No two squares but 0 and 1 are neighbours, so that the number of rows tells whether it is there.
    """
    has_class = x.ndim == 3 and math.isqrt(x.shape[1]) ** 2 != x.shape[1]
    return (flat_position(x[:, 1:]), x[:, :1]) if has_class else (flat_position(x),)


def join_position(table: Tensor, of_class: Tensor | None = None) -> Tensor:
    """The inverse of `position_with_class`."""
    flat = table.flatten(1, 2)  # [1, h*w, C]
    return flat if of_class is None else torch.cat([of_class, flat], dim=1)  # [1, 1+h*w, C]


def without_time(x: Tensor) -> Tensor:
    """Weight of a convolution over time and space, ``[out, in, 1, h, w]``, as one over space; others as they are.

    Raises:
        CheckpointMismatchError: It spans several moments.
    """
    if x.ndim != 5:
        return x
    if x.shape[2] != 1:
        raise CheckpointMismatchError(
            f"a convolution has a weight of shape {tuple(x.shape)}, expected one moment in time: it is of a video model"
        )
    return x.squeeze(2)  # [out, in, h, w]


UNFOLD = Change(from_unfold, to_unfold)
TABLE = Change(square_table, flat_table)
DENSE_POSITION = Change(dense_position, lambda x: x.permute(0, 3, 1, 2).contiguous())
FLAT_POSITION = Change(flat_position, lambda x: x.flatten(1, 2))
CLASS_POSITION = Change(position_with_class, join_position)
NO_TIME = Change(without_time, lambda x: x)  # what reads them with a time axis also reads them without
# torchvision keeps the index of a window flat.
FLAT_INDEX = Change(lambda x: x.unflatten(0, (math.isqrt(x.numel()), -1)), lambda x: x.flatten())
# torchvision's V2 keeps a bias for keys that it sets to zero in every forward pass.
NO_KEY_BIAS = Change(
    lambda x: (x.chunk(3)[0].clone(), x.chunk(3)[2].clone()),
    lambda q, v: torch.cat([q, torch.zeros_like(q), v]),
)


def _same(*names: str) -> tuple[Rule, ...]:
    return tuple(Rule(name, name) for name in names)


def _prefixed(prefix: str, rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    return tuple(replace(rule, theirs=prefix + rule.theirs) for rule in rules)


def _read_only(*rules: Rule) -> tuple[Rule, ...]:
    return tuple(replace(rule, written=False) for rule in rules)


def _stem(proj: str = "patch_embed.proj", norm: str = "patch_embed.norm") -> tuple[Rule, ...]:
    return Rule(f"{proj}.*", "patch_embed.proj.*"), Rule(f"{norm}.*", "patch_embed.norm.*")


def _block(path: str, attn: str = "attn", fc1: str = "mlp.fc1", fc2: str = "mlp.fc2") -> tuple[Rule, ...]:
    """What blocks of V1 and V2 share; `path` is the path of a block, the rest the names inside it."""
    ours = "stages.{i}.blocks.{j}."
    names = {"norm1": "norm1", "norm2": "norm2", f"{attn}.proj": "attn.proj", fc1: "mlp.fc1", fc2: "mlp.fc2"}
    return tuple(Rule(f"{path}{theirs}.*", f"{ours}{name}.*") for theirs, name in names.items())


def _v1(attn: str, index: Change | None = None) -> tuple[Rule, ...]:
    """Attention of Swin V1; `attn` is its path."""
    ours = "stages.{i}.blocks.{j}.attn."
    return (
        Rule(f"{attn}qkv.*", f"{ours}qkv.*"),
        Rule(f"{attn}relative_position_bias_table", f"{ours}bias.relative_position_bias_table", TABLE),
        Rule(f"{attn}relative_position_index", f"{ours}bias.index", index),
    )


def _v2(attn: str, index: Change | None = None, joint_bias: bool = False) -> tuple[Rule, ...]:
    """Attention of Swin V2; `attn` is its path."""
    ours = "stages.{i}.blocks.{j}.attn."
    q, v = f"{ours}q_bias", f"{ours}v_bias"
    separate = (Rule(f"{attn}q_bias", q), Rule(f"{attn}v_bias", v))
    return (
        Rule(f"{attn}qkv.weight", f"{ours}qkv.weight"),
        *((Rule(f"{attn}qkv.bias", (q, v), NO_KEY_BIAS),) if joint_bias else separate),
        Rule(f"{attn}logit_scale", f"{ours}logit_scale"),
        Rule(f"{attn}cpb_mlp.*", f"{ours}bias.cpb_mlp.*"),
        Rule(f"{attn}relative_coords_table", f"{ours}bias.relative_coords_table"),
        Rule(f"{attn}relative_position_index", f"{ours}bias.index", index),
    )


def _merge(path: str, unfold: Change | None = None, unfold_norm: Change | None = None) -> tuple[Rule, ...]:
    """Patch merging; `path` is its path under the index of the stage before it."""
    return (
        Rule(f"{path}reduction.weight", "stages.{i}.downsample.reduction.weight", unfold),
        Rule(f"{path}norm.*", "stages.{i}.downsample.norm.*", unfold_norm),
    )


_mask = Rule("layers.{i}.blocks.{j}.attn_mask", "stages.{i}.blocks.{j}.attn_mask")


def _official(attention: tuple[Rule, ...]) -> tuple[Scheme, Scheme]:
    trunk = (*_stem(), *_block("layers.{i}.blocks.{j}."), *attention, *_merge("layers.{i}.downsample."))
    needs = ("layers.0.downsample.reduction.weight",)  # timm's blocks have the same names
    dense = (*trunk, *_same("norm{i}.*"), Rule("absolute_pos_embed", "absolute_pos_embed.table", DENSE_POSITION))
    classifier = (
        *(*trunk, _mask, *_same("norm.*", "head.*")),
        Rule("absolute_pos_embed", "absolute_pos_embed.table", FLAT_POSITION),
    )
    # The second also names detectron2's port and the authors' detection and segmentation code.
    return (
        Scheme("official", classifier, needs, wrapper="model"),
        Scheme("official", dense, needs, wrapper="model"),
    )


def _timm(attention: tuple[Rule, ...]) -> Scheme:
    head = (*_same("norm.*"), Rule("head.fc.*", "head.*"))
    # Merging stands at the start of the next stage, under its index.
    merge = _merge("layers.{i+1}.downsample.")
    attention = tuple(replace(rule, written=not re.fullmatch(REBUILT, rule.ours)) for rule in attention)
    return Scheme("timm", (*_stem(), *_block("layers.{i}.blocks.{j}."), *attention, *merge, *head))


def _torchvision(attention: tuple[Rule, ...]) -> Scheme:
    block = _block("features.{2i+1}.{j}.", fc1="mlp.0", fc2="mlp.3")
    merge = _merge("features.{2i+2}.")
    return Scheme(
        "torchvision",
        (*_stem("features.0.0", "features.0.2"), *block, *attention, *merge, *_same("norm.*", "head.*")),
    )


def _mm(attention: tuple[Rule, ...], merge: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """The trunk under the names of mmdet, mmseg and mmpretrain."""
    block = _block("stages.{i}.blocks.{j}.", "attn.w_msa", "ffn.layers.0.0", "ffn.layers.1")
    return (*_stem("patch_embed.projection"), *block, *attention, *merge)


def _mmpretrain(trunk: tuple[Rule, ...], layout: Layout | None = None) -> tuple[Scheme, Scheme]:
    """A classifier, whose norm is the last stage's output norm, and a dense backbone."""
    head = (Rule("backbone.norm3.*", "norm.*"), Rule("head.fc.*", "head.*"))
    old = _read_only(  # of its first releases
        Rule("backbone.norm.*", "norm.*"),
        Rule("backbone.stages.{i}.blocks.{j}.attn.attn_mask", "stages.{i}.blocks.{j}.attn_mask"),
    )
    classifier = (*_prefixed("backbone.", trunk), *head, *old)
    return (
        Scheme("mmpretrain", classifier, wrapper="state_dict", layout=layout),
        Scheme("mmpretrain", (*trunk, *_same("norm{i}.*")), prefix="backbone.", wrapper="state_dict", layout=layout),
    )


def _own(*names: str, beside: tuple[str, ...] = ("patch_embed.norm.*", "stages.{i}.downsample.*")) -> Scheme:
    """Our own names: `names` are those in a block beside what all blocks have, `beside` those outside of blocks."""
    block = ("norm1.*", "norm2.*", "attn.qkv.*", "attn.proj.*", "mlp.*", *names)
    blocks = (f"stages.{{i}}.blocks.{{j}}.{name}" for name in block)
    everywhere = ("patch_embed.proj.*", "absolute_pos_embed.table", "norm{i}.*", "norm.*", "head.*")
    return Scheme("vitdense", _same(*everywhere, *blocks, *beside), wrapper="state_dict")


_MM_V1 = _mm(_v1("stages.{i}.blocks.{j}.attn.w_msa."), _merge("stages.{i}.downsample.", UNFOLD, UNFOLD))
SWIN = (
    _own("attn.bias.relative_position_bias_table"),
    *_official(_v1("layers.{i}.blocks.{j}.attn.")),
    _timm(_v1("layers.{i}.blocks.{j}.attn.")),
    _torchvision(_v1("features.{2i+1}.{j}.attn.", FLAT_INDEX)),
    Scheme(
        "mmdet",  # and mmseg, and mmpretrain's backbone when dense; classifiers come out of mmdet's own converter
        (
            *_MM_V1,
            *_same("norm{i}.*", "norm.*", "head.*"),
            *_read_only(*_same("stages.{i}.blocks.{j}.attn_mask")),
            Rule("absolute_pos_embed", "absolute_pos_embed.table", FLAT_POSITION),
        ),
        prefix="backbone.",
        wrapper="state_dict",
    ),
    *_mmpretrain(_MM_V1),
)

# Merging stands at the start of the next stage; V2's norm comes after the reduction, in no neighbour's order.
_MM_V2 = (
    *_mm(_v2("stages.{i}.blocks.{j}.attn.w_msa."), _merge("stages.{i+1}.downsample.", UNFOLD)),
    *_same("stages.{i}.blocks.{j}.norm3.*"),  # of huge and giant
)
SWIN_V2 = (
    _own("attn.q_bias", "attn.v_bias", "attn.logit_scale", "attn.bias.cpb_mlp.*", "norm3.*"),
    *_official(_v2("layers.{i}.blocks.{j}.attn.")),
    _timm(_v2("layers.{i}.blocks.{j}.attn.")),
    _torchvision(_v2("features.{2i+1}.{j}.attn.", FLAT_INDEX, joint_bias=True)),
    *_mmpretrain(_MM_V2),
)


def _check_numbers(what: str, numbers: Iterable[int]) -> None:
    """Raise unless the numbers are 0, 1, 2, ... without a gap."""
    numbers = sorted(set(numbers))
    for expected, number in enumerate(numbers):
        if number != expected:
            raise CheckpointMismatchError(
                f"the checkpoint has {what} {number}, but {what} {expected} is missing from it"
            )


def _attention_width(state: Mapping[str, Tensor], block: str) -> int:
    """Channels of the attention of a block, given by its path."""
    key = f"{block}attn.qkv.weight"
    if key not in state:
        raise CheckpointMismatchError(f"{key} is missing from the checkpoint: it tells where the width changes")
    shape = tuple(state[key].shape)
    if len(shape) != 2 or shape[0] % 3:
        raise CheckpointMismatchError(f"{key} has shape {shape}, expected [3 * C, C'] of an attention of width C")
    return shape[0] // 3


def stages_of_blocks(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Names by stages for blocks numbered throughout: of one attention width in a stage, of twice that in the next.

    Raises:
        CheckpointMismatchError: A block is missing between others, or its width is missing or another.
    """
    found = {key: (int(match[1]), match[2]) for key in state if (match := re.fullmatch(r"blocks\.(\d+)\.(.+)", key))}
    _check_numbers("block", (n for n, _ in found.values()))
    places: list[str] = []
    stage = first = before = 0
    for n in sorted({n for n, _ in found.values()}):
        width = _attention_width(state, f"blocks.{n}.")
        if n and width != before:
            if width != 2 * before:
                raise CheckpointMismatchError(
                    f"blocks.{n}.attn.qkv.weight is of an attention of width {width} behind one of {before}, expected "
                    f"the same width, or twice it at the start of a stage"
                )
            stage, first = stage + 1, n
        before = width
        places.append(f"stages.{stage}.blocks.{n - first}.")
    return {key: places[found[key][0]] + found[key][1] if key in found else key for key in state}


def blocks_of_stages(ours: Mapping[str, Tensor]) -> dict[str, str]:
    """The inverse of `stages_of_blocks`.

    Raises:
        CheckpointMismatchError: A stage or a block is missing between others.
    """
    pattern = re.compile(r"stages\.(\d+)\.blocks\.(\d+)\.(.+)")
    found = {key: (int(match[1]), int(match[2]), match[3]) for key in ours if (match := pattern.fullmatch(key))}
    blocks = sorted({(stage, block) for stage, block, _ in found.values()})
    _check_numbers("stage", (stage for stage, _ in blocks))
    for stage in {stage for stage, _ in blocks}:
        _check_numbers(f"stage {stage}, block", (block for s, block in blocks if s == stage))
    numbers = {place: n for n, place in enumerate(blocks)}
    return {key: f"blocks.{numbers[found[key][:2]]}.{found[key][2]}" if key in found else key for key in ours}


SKIPS = ("shortcut_proj_attn", "shortcut_proj_mlp")  # timm's names of a block's projection, by the branch that has it


def one_skip(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Our name for either of timm's."""
    return {key: re.sub(rf"\.({'|'.join(SKIPS)})\.", ".proj.", key) for key in state}


def skip_by_branch(ours: Mapping[str, Tensor]) -> dict[str, str]:
    """The inverse of `one_skip`: it is of the attention where that changes the width, else of the MLP.

    Raises:
        CheckpointMismatchError: The attention's width is missing.
    """
    names = {key: key for key in ours}
    for key in ours:
        if match := re.fullmatch(r"(stages\.\d+\.blocks\.\d+\.)proj\.(.+)", key):
            in_attention = _attention_width(ours, match[1]) != ours[f"{match[1]}attn.qkv.weight"].shape[1]
            names[key] = f"{match[1]}{SKIPS[0] if in_attention else SKIPS[1]}.{match[2]}"
    return names


FLAT = Layout(stages_of_blocks, blocks_of_stages)
BY_BRANCH = Layout(one_skip, skip_by_branch)


def _mvit(block: str, skips: tuple[str, ...] = ("proj",), proj: str = "patch_embed.proj") -> tuple[Rule, ...]:
    """Trunk of MViT; `block` is the path of a block, as the scheme's layout has it."""
    plain = ("norm1.*", "norm2.*", "mlp.*", "attn.qkv.*", "attn.proj.*", *(f"attn.norm_{x}.*" for x in "qkv"))
    return (
        Rule(f"{proj}.weight", "patch_embed.proj.weight", NO_TIME),
        Rule(f"{proj}.bias", "patch_embed.proj.bias"),
        *_same(*(block + name for name in (*plain, *(f"{skip}.*" for skip in skips)))),
        *(Rule(name, name, NO_TIME) for name in (f"{block}attn.pool_{x}.weight" for x in "qkv")),
        *(Rule(f"{block}attn.{name}", f"{block}attn.bias.{name}") for name in ("rel_pos_h", "rel_pos_w")),
    )


_MVIT_POSITION = Rule(
    "pos_embed",
    ("absolute_pos_embed.table", "absolute_pos_embed.class_token"),
    CLASS_POSITION,
    optional=("absolute_pos_embed.class_token",),
)
_MM_MVIT = (
    *_mvit("blocks.{i}.", proj="patch_embed.projection"),
    Rule("pos_embed", "absolute_pos_embed.table", FLAT_POSITION),
)
MVIT = (
    _own(
        *(f"attn.pool_{x}.weight" for x in "qkv"),
        *(f"attn.norm_{x}.*" for x in "qkv"),
        *("attn.bias.rel_pos_h", "attn.bias.rel_pos_w", "proj.*"),
        beside=("absolute_pos_embed.class_token", "cls_token"),
    ),
    Scheme(
        "official",
        (*_mvit("blocks.{i}."), _MVIT_POSITION, *_same("norm.*", "cls_token"), Rule("head.projection.*", "head.*")),
        wrapper="model_state",
        layout=FLAT,
    ),
    Scheme(
        "detectron2",  # a backbone only; it reads the authors' classifiers as they are
        (*_mvit("blocks.{i}."), _MVIT_POSITION, Rule("scale{i+2}_norm.*", "norm{i}.*")),
        prefix="backbone.bottom_up.",
        wrapper="model",
        layout=FLAT,
    ),
    Scheme(
        "timm",
        (
            *_mvit("stages.{i}.blocks.{j}.", SKIPS),
            *(_MVIT_POSITION, *_same("norm.*", "cls_token"), Rule("head.fc.*", "head.*")),
        ),
        layout=BY_BRANCH,
    ),
    *_mmpretrain(_MM_MVIT, FLAT),
)

SCHEMES: dict[str, tuple[Scheme, ...]] = {"swin": SWIN, "swin_v2": SWIN_V2, "mvit": MVIT}

# Weights by name: `init_cfg=dict(type='Pretrained', checkpoint='swin_t.ms_in1k')`.
_sizes = {"t": "tiny", "s": "small", "b": "base", "l": "large", "h": "huge"}
NAMED: dict[str, str] = {
    # The authors' release, as timm hosts it. ImageNet-1K, or 22K where the name says so.
    **{f"swin_{s}.ms_in1k": f"timm://swin_{_sizes[s]}_patch4_window7_224.ms_in1k" for s in "tsb"},
    **{f"swin_{s}.ms_in22k": f"timm://swin_{_sizes[s]}_patch4_window7_224.ms_in22k" for s in "tsbl"},
    **{f"swin_{s}_384.ms_in22k": f"timm://swin_{_sizes[s]}_patch4_window12_384.ms_in22k" for s in "bl"},
    **{f"swinv2_{s}_w8.ms_in1k": f"timm://swinv2_{_sizes[s]}_window8_256.ms_in1k" for s in "tsb"},
    **{f"swinv2_{s}_w16.ms_in1k": f"timm://swinv2_{_sizes[s]}_window16_256.ms_in1k" for s in "tsb"},
    **{f"swinv2_{s}_w12.ms_in22k": f"timm://swinv2_{_sizes[s]}_window12_192.ms_in22k" for s in "bl"},
    # The authors' release, as timm hosts it. ImageNet-1K, or the winter 2021 release of 21K, whose models have a class
    # token, which dense prediction leaves out. mvitv2_l.fb_in1k is of the arch v2_large_in1k.
    **{f"mvitv2_{s}.fb_in1k": f"timm://mvitv2_{_sizes[s]}.fb_in1k" for s in "tsbl"},
    **{f"mvitv2_{s}.fb_inw21k": f"timm://mvitv2_{_sizes[s]}_cls.fb_inw21k" for s in "blh"},
    # Trained by torchvision.
    **{f"swin_{s}.tv_in1k": f"torchvision://swin_{s}" for s in "tsb"},
    **{f"swinv2_{s}_w8.tv_in1k": f"torchvision://swin_v2_{s}" for s in "tsb"},
}
