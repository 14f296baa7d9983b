"""Published checkpoints as tables: the naming schemes of every family, and weights by name.

A scheme's rules lead from its names to ours and back, without loss. Our names are those of the model's own state
dict, and beside them those of `CLASSIFIER`, `PRETRAINING`, `TOKENS` and `REBUILT`: what a checkpoint may hold that a
backbone does not.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from vitdense.weights.changes import (
    CONV_KERNEL,
    DENSE_KERNEL,
    DENSE_POSITION,
    FLAT_INDEX,
    FLAT_POSITION,
    NO_KEY_BIAS,
    NO_TIME,
    OUT_KERNEL,
    PATCH_BIAS,
    QKV_BIAS,
    QKV_KERNEL,
    TABLE,
    TOKEN_POSITION,
    UNFOLD,
)
from vitdense.weights.errors import CheckpointMismatchError
from vitdense.weights.rename import Change, Layout, Rule, relabel, rename, reverse

# What may be left over, and why: of a classifier; of masked autoencoding; of tokens beside the map, where the model has
# none; rebuilt from the window or the image size.
CLASSIFIER = r"(norm|fc_norm|pre_logits|head|head_dist)\..+"
PRETRAINING = r"mask_token|decoder_.+"
TOKENS = r"tokens\..+"
REBUILT = r".+\.attn\.bias\.(index|relative_coords_table)|.+\.attn_mask"
# Output norms: absent from every classification checkpoint, and more or fewer by `out_indices`.
OUTPUT_NORMS = r"norm\d+\..+"
# What a checkpoint may lack, but then all of it: ViTDet gives its relative positions to models pretrained without.
FRESH = {"vit": (OUTPUT_NORMS, r".+\.attn1?\.bias\.rel_pos_[hw]")}


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
        token_position: Whether its models give the class token a position, where that alone tells two forms apart in
            which to write; None if they may or may not.
    """

    name: str
    rules: tuple[Rule, ...]
    needs: tuple[str, ...] = ()
    prefix: str = ""
    wrapper: str | None = None
    layout: Layout | None = None
    token_position: bool | None = None

    def suits(self, ours: Mapping[str, Tensor]) -> bool:
        """Whether its models have the class token of a state dict by our names as that has it."""
        is_free = self.token_position is None or "tokens.cls_token" not in ours
        return is_free or self.token_position == ("tokens.cls_position" in ours)

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
        CheckpointMismatchError: A block is missing between others, or its width is missing or another; or they are the
            blocks of a plain ViT.
    """
    if not any(re.fullmatch(r"blocks\.\d+\.(attn\.pool_.|proj)\..+", key) for key in state):
        raise CheckpointMismatchError("no block pools or changes its width: that is a plain ViT, not an MViT")
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


def _position(*of_tokens: str, theirs: str = "pos_embed") -> Rule:
    """Flat positions, in front those of the tokens named, which may be absent."""
    return Rule(theirs, ("absolute_pos_embed.table", *of_tokens), TOKEN_POSITION, optional=of_tokens)


_CLASS_POSITION = _position("tokens.cls_position")
_CLASS_TOKEN = Rule("cls_token", "tokens.cls_token")
_MM_MVIT = (
    *_mvit("blocks.{i}.", proj="patch_embed.projection"),
    Rule("pos_embed", "absolute_pos_embed.table", FLAT_POSITION),
)
MVIT = (
    _own(
        *(f"attn.pool_{x}.weight" for x in "qkv"),
        *(f"attn.norm_{x}.*" for x in "qkv"),
        *("attn.bias.rel_pos_h", "attn.bias.rel_pos_w", "proj.*"),
        beside=("tokens.cls_token", "tokens.cls_position"),
    ),
    Scheme(
        "official",
        (*_mvit("blocks.{i}."), _CLASS_POSITION, _CLASS_TOKEN, *_same("norm.*"), Rule("head.projection.*", "head.*")),
        wrapper="model_state",
        layout=FLAT,
    ),
    Scheme(
        "detectron2",  # a backbone only; it reads the authors' classifiers as they are
        (*_mvit("blocks.{i}."), _CLASS_POSITION, Rule("scale{i+2}_norm.*", "norm{i}.*")),
        prefix="backbone.bottom_up.",
        wrapper="model",
        layout=FLAT,
    ),
    Scheme(
        "timm",
        (
            *_mvit("stages.{i}.blocks.{j}.", SKIPS),
            *(_CLASS_POSITION, _CLASS_TOKEN, *_same("norm.*"), Rule("head.fc.*", "head.*")),
        ),
        layout=BY_BRANCH,
    ),
    *_mmpretrain(_MM_MVIT, FLAT),
)


def _vit_block(names: Mapping[str, str], path: str = "blocks.{i}.", branch: int = 0) -> tuple[Rule, ...]:
    """Attention and MLP of a ViT's block, of parallel ones the first or second of each.

    Args:
        names: Patterns inside the block where they differ from ours.
        path: Of a block.
        branch: Counted from 0.
    """
    rules = []
    for name in ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2"):
        layer, dot, part = name.partition(".")
        ours = f"{layer}{branch or ''}{dot}{part}.*"
        rules.append(Rule(path + names.get(name, ours), "blocks.{i}." + ours))
    return tuple(rules)


def _layer_scale(first: str, second: str, path: str = "blocks.{i}.", branch: int = 0) -> tuple[Rule, ...]:
    """LayerScale of attention and MLP; see `_vit_block`."""
    tail = f"_{branch}" * (branch > 0)
    return Rule(path + first, f"blocks.{{i}}.gamma_1{tail}"), Rule(path + second, f"blocks.{{i}}.gamma_2{tail}")


def _timm_branch(n: int) -> tuple[Rule, ...]:
    """One of timm's parallel attentions and MLPs."""
    attention, mlp = f"attns.{n}.", f"ffns.{n}."
    names = {"norm1": f"{attention}norm.*", "norm2": f"{mlp}norm.*"}
    names |= {name: f"{attention}{name}.*" for name in ("attn.qkv", "attn.proj")}
    names |= {name: f"{mlp}{name}.*" for name in ("mlp.fc1", "mlp.fc2")}
    return *_vit_block(names, branch=n), *_layer_scale(f"{attention}ls.gamma", f"{mlp}ls.gamma", branch=n)


def _google(attention: int, mlp: int, norm2: int, position: str, token_position: bool, prefix: str = "") -> Scheme:
    """Names of Google's JAX code, whose releases differ in the numbers of layers in a block, and in whether the class
    token has a position."""
    block, ours = "Transformer/encoderblock_{i}/", "blocks.{i}."
    attend = f"{block}MultiHeadDotProductAttention_{attention}/"

    def norm(theirs: str, ours: str) -> tuple[Rule, ...]:
        return Rule(f"{theirs}/scale", f"{ours}.weight"), Rule(f"{theirs}/bias", f"{ours}.bias")

    def linear(theirs: str, ours: str, kernel: Change = DENSE_KERNEL) -> tuple[Rule, ...]:
        return Rule(f"{theirs}/kernel", f"{ours}.weight", kernel), Rule(f"{theirs}/bias", f"{ours}.bias")

    def qkv(what: str) -> tuple[str, ...]:
        return tuple(f"{attend}{name}/{what}" for name in ("query", "key", "value"))

    return Scheme(
        "google",
        (
            *linear("embedding", "patch_embed.proj", CONV_KERNEL),
            Rule("cls", "tokens.cls_token"),
            _position("tokens.cls_position", theirs=position),
            *norm(f"{block}LayerNorm_0", f"{ours}norm1"),
            Rule(qkv("kernel"), f"{ours}attn.qkv.weight", QKV_KERNEL),
            Rule(qkv("bias"), f"{ours}attn.qkv.bias", QKV_BIAS),
            *linear(f"{attend}out", f"{ours}attn.proj", OUT_KERNEL),
            *norm(f"{block}LayerNorm_{norm2}", f"{ours}norm2"),
            *(rule for n in (0, 1) for rule in linear(f"{block}MlpBlock_{mlp}/Dense_{n}", f"{ours}mlp.fc{n + 1}")),
            *norm("Transformer/encoder_norm", "norm"),
            *linear("pre_logits", "pre_logits"),
            *linear("head", "head"),
        ),
        prefix=prefix,
        token_position=token_position,
    )


_VIT_TOKENS = (
    _CLASS_TOKEN,
    Rule("dist_token", "tokens.dist_token"),
    _position("tokens.cls_position", "tokens.dist_position"),
)
# MViT's head has other names below `head`, which tells the two apart.
_VIT_HEAD = _same("norm.*", "fc_norm.*", "head.weight", "head.bias", "head_dist.*")
_VIT_BLOCKS = (  # with parallel branches
    *(*_vit_block({}), *_layer_scale("gamma_1", "gamma_2")),
    *(*_vit_block({}, branch=1), *_layer_scale("gamma_1_1", "gamma_2_1", branch=1)),
)
_MAE = _same(
    "mask_token", "decoder_pos_embed", "decoder_blocks.{i}.*", *(f"decoder_{x}.*" for x in ("embed", "norm", "pred"))
)
_VIT_PATCH = _same("patch_embed.proj.weight", "patch_embed.proj.bias")
_TIMM_VIT = (
    *(*_VIT_PATCH, *_VIT_TOKENS, *_VIT_HEAD),
    # The second is of DINOv2 as its authors have it.
    *_read_only(Rule("pre_logits.fc.*", "pre_logits.*"), *_same("mask_token")),
)
_MM_BLOCK = {"norm1": "ln1.*", "norm2": "ln2.*", "mlp.fc1": "ffn.layers.0.0.*", "mlp.fc2": "ffn.layers.1.*"}
_MMPRETRAIN_VIT = (
    *_VIT_TOKENS,
    *(Rule(f"patch_embed.projection.{name}", f"patch_embed.proj.{name}") for name in ("weight", "bias")),
    *_vit_block(_MM_BLOCK, "layers.{i}."),
    *_layer_scale("attn.gamma1.weight", "ffn.gamma2.weight", "layers.{i}."),
    *(Rule("ln1.*", "norm.*"), Rule("ln2.*", "fc_norm.*")),
)
VIT = (
    Scheme(
        "vitdense",
        (
            *_same("patch_embed.proj.*", "absolute_pos_embed.table", "norm{i}.*", "pre_logits.*"),
            *_same(*(f"tokens.{name}_{part}" for name in ("cls", "dist") for part in ("token", "position"))),
            *(*_VIT_BLOCKS, *_VIT_HEAD, *_MAE),
            *_same(*(f"blocks.{{i}}.attn{n}.bias.rel_pos_{axis}" for n in ("", "1") for axis in "hw")),
        ),
        wrapper="state_dict",
    ),
    Scheme(
        "official",  # DeiT, DeiT III with parallel blocks and the hMLP stem, and MAE with its decoder
        (*_same("patch_embed.proj.*"), *_VIT_TOKENS, *_VIT_BLOCKS, *_VIT_HEAD, *_MAE),
        wrapper="model",
    ),
    Scheme("timm", (*_TIMM_VIT, *_vit_block({}), *_layer_scale("ls1.gamma", "ls2.gamma"))),
    Scheme("timm", (*_TIMM_VIT, *_timm_branch(0), *_timm_branch(1))),
    Scheme(
        "mmseg",
        (
            *(_CLASS_TOKEN, _CLASS_POSITION, Rule("ln1.*", "norm.*")),
            Rule(
                ("patch_embed.projection.weight", "patch_embed.projection.bias"),
                ("patch_embed.proj.weight", "patch_embed.proj.bias"),
                PATCH_BIAS,
                optional=("patch_embed.projection.bias",),
            ),
            *_vit_block(
                {**_MM_BLOCK, "attn.qkv": "attn.attn.in_proj_*", "attn.proj": "attn.attn.out_proj.*"}, "layers.{i}."
            ),
        ),
        wrapper="state_dict",
    ),
    Scheme(
        "mmpretrain",
        (
            *_prefixed("backbone.", _MMPRETRAIN_VIT),
            *(Rule(f"head.layers.{name}.*", f"{name}.*") for name in ("head_dist", "pre_logits")),
            *(Rule(f"head.layers.head.{name}", f"head.{name}") for name in ("weight", "bias")),
            *_read_only(Rule("head.fc.*", "head.*")),  # of its plain linear head
        ),
        wrapper="state_dict",
    ),
    Scheme("mmpretrain", _MMPRETRAIN_VIT, prefix="backbone.", wrapper="state_dict"),
    _google(1, 3, 2, "Transformer/posembed_input/pos_embedding", token_position=True),
    _google(0, 0, 1, "pos_embedding", token_position=False, prefix="params/"),  # of big_vision
    Scheme(
        "detectron2",  # ViTDet: a backbone only, without class token, but with the positions of models that had one
        (
            *(*_VIT_PATCH, _CLASS_POSITION, *_vit_block({})),
            *(
                Rule(f"blocks.{{i}}.attn.{name}", f"blocks.{{i}}.attn.bias.{name}")
                for name in ("rel_pos_h", "rel_pos_w")
            ),
        ),
        prefix="backbone.net.",
        wrapper="model",
    ),
)

SCHEMES: dict[str, tuple[Scheme, ...]] = {"swin": SWIN, "swin_v2": SWIN_V2, "mvit": MVIT, "vit": VIT}

# Weights by name: `init_cfg=dict(type='Pretrained', checkpoint='swin_t.ms_in1k')`.
_sizes = {"t": "tiny", "s": "small", "m": "medium", "b": "base", "l": "large", "h": "huge"}
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
    # The authors' releases, as timm hosts them: DeiT, DeiT III, "How to train your ViT?", MAE's pretraining.
    **{f"deit_{s}.fb_in1k": f"timm://deit_{_sizes[s]}_patch16_224.fb_in1k" for s in "tsb"},
    **{f"deit_{s}_distilled.fb_in1k": f"timm://deit_{_sizes[s]}_distilled_patch16_224.fb_in1k" for s in "tsb"},
    "deit_b_384.fb_in1k": "timm://deit_base_patch16_384.fb_in1k",
    "deit_b_distilled_384.fb_in1k": "timm://deit_base_distilled_patch16_384.fb_in1k",
    **{
        f"deit3_{s}{image}.{data}": f"timm://deit3_{_sizes[s]}_patch{14 if s == 'h' else 16}{image or '_224'}.{data}"
        for image, sizes in (("", "smblh"), ("_384", "sbl"))
        for s in sizes
        for data in ("fb_in1k", "fb_in22k_ft_in1k")
    },
    **{
        f"vit_{s}{image}.{data}": f"timm://vit_{_sizes[s]}_patch16{image or '_224'}.{data}"
        for data, image, sizes in (
            ("augreg_in21k", "", "tsbl"),
            ("augreg_in21k_ft_in1k", "", "tsbl"),
            ("augreg_in21k_ft_in1k", "_384", "tsbl"),
            ("augreg_in1k", "", "sb"),
        )
        for s in sizes
    },
    **{f"vit_{s}.mae": f"timm://vit_{_sizes[s]}_patch{14 if s == 'h' else 16}_224.mae" for s in "blh"},
    # Trained by torchvision.
    **{f"swin_{s}.tv_in1k": f"torchvision://swin_{s}" for s in "tsb"},
    **{f"swinv2_{s}_w8.tv_in1k": f"torchvision://swin_v2_{s}" for s in "tsb"},
}
