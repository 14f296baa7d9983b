"""Which family and naming scheme a checkpoint is of, never guessed: from its keys, and where two forms of a scheme have
the same ones, from the shapes."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitdense.layers.blocks import HierarchicalStem
from vitdense.weights.changes import FLAT_POSITION, TOKEN_POSITION, VIT_SIZES
from vitdense.weights.errors import CheckpointMismatchError
from vitdense.weights.rename import find_rule
from vitdense.weights.sources import SCHEMES, Scheme

WRAPPERS = ("state_dict", "model", "model_state", "model_ema")
# Of detectron2's and of mm's whole models, and of training states and parameters of JAX.
PREFIXES = ("backbone.bottom_up.", "backbone.net.", "backbone.", "opt/target/", "params/")
LISTED = 20  # keys in a message


@dataclass(frozen=True)
class Found:
    """The backbone in a checkpoint.

    Attributes:
        family: Of `SCHEMES`.
        scheme: Its naming scheme.
        prefix: What stood before its keys.
        state: Its tensors by the scheme's names.
        rest: The other tensors of a whole model, by their full names.
    """

    family: str
    scheme: Scheme
    prefix: str
    state: dict[str, Tensor]
    rest: dict[str, Tensor]

    def ours(self) -> dict[str, Tensor]:
        """The backbone's tensors by our names; see `Scheme.to_ours`."""
        return self.scheme.to_ours(self.state)

    def meaning(self) -> dict[str, tuple]:
        """What every key is taken for: equal where two schemes do not contradict each other."""
        found = {key: find_rule(key, self.scheme.rules) for key in self.state}
        return {
            self.prefix + key: (
                tuple(target.fill(values) for target in rule.targets if target.text not in rule.optional),
                rule.change,
            )
            for key, (rule, _, values) in found.items()
        }

    def has_flat_positions(self) -> bool:
        """Whether its absolute positions do not tell height from width."""
        found = (find_rule(key, self.scheme.rules) for key in self.state)
        return any(rule.change in (FLAT_POSITION, TOKEN_POSITION) for rule, _, _ in found)

    def faults(self) -> list[str]:
        """Keys that the scheme does not know, and keys it cannot be without."""
        unknown = [key for key in self.state if find_rule(key, self.scheme.rules) is None]
        return unknown + [f"{key} (absent)" for key in self.lacks()]

    def lacks(self) -> list[str]:
        """Keys that it cannot be without, if it merges patches at all."""
        merges = any(".downsample." in key for key in self.state)
        return [key for key in self.scheme.needs if merges and key not in self.state]


def unwrap(checkpoint: Mapping) -> dict[str, Tensor]:
    """The tensors of a checkpoint: wrappers such as ``state_dict`` opened, ``module.`` of DDP removed.

    Raises:
        CheckpointMismatchError: There are none.
    """
    for wrapper in WRAPPERS:
        if isinstance(checkpoint.get(wrapper), Mapping):
            checkpoint = checkpoint[wrapper]
    state = {key: value for key, value in checkpoint.items() if isinstance(value, Tensor) and isinstance(key, str)}
    if not state:
        raise CheckpointMismatchError(
            f"no tensors by name in the checkpoint; its keys are {list(checkpoint)[:LISTED]}, expected parameters by "
            f"name, plain or under one of {', '.join(WRAPPERS)}"
        )
    odd = [key for key, value in state.items() if value.layout != torch.strided or value.is_meta or value.is_quantized]
    if odd:
        raise CheckpointMismatchError(
            f"{len(odd)} tensors are sparse, quantised or without content, expected dense ones: "
            f"{', '.join(odd[:LISTED])}"
        )
    if all(key.startswith("module.") for key in state):
        state = {key.removeprefix("module."): value for key, value in state.items()}
    return state


def detect(
    state: Mapping[str, Tensor],
    families: Iterable[str] = tuple(SCHEMES),
    prefix: str | None = None,
    scheme: str | None = None,
) -> Found:
    """Find the backbone in a state dict.

    Args:
        state: From `unwrap`.
        families: Those it may be of.
        prefix: Of the backbone's keys, such as ``'backbone.'``; None finds the usual ones.
        scheme: Name of the naming scheme; None detects it.

    Raises:
        CheckpointMismatchError: No scheme knows every key, or two do that contradict each other.
    """
    families = tuple(families)
    parts = _parts(state, prefix)
    if scheme is not None and scheme not in (names := _names(families)):
        raise CheckpointMismatchError(f"scheme: got {scheme!r}, expected one of {', '.join(names)}")

    def candidates(families: Iterable[str]) -> list[Found]:
        return [
            Found(family, row, start, part, rest)
            for family in families
            for row in SCHEMES[family]
            if scheme in (None, row.name)
            for start, part, rest in parts
        ]

    fits = [found for found in candidates(families) if _fits(found)]
    # One that explains every key of the file is better than one that takes some for heads and necks.
    fits = [found for found in fits if not found.rest] or fits
    if fits and not _contradict(fits):
        return fits[0]
    if (readable := [found for found in fits if _is_readable(found)]) and not _contradict(readable):
        return readable[0]
    if fits := readable or fits:
        raise CheckpointMismatchError(
            f"the keys fit more than one naming scheme, and these contradict each other: "
            f"{', '.join(dict.fromkeys(found.scheme.name for found in fits))}; name the one it is by {_choice(fits)}"
        )
    everywhere = [(found, found.faults()) for found in candidates(SCHEMES)]
    nearest, faults = min(everywhere, key=lambda pair: len(pair[1]) / max(len(pair[0].state), 1))
    if not faults:
        raise CheckpointMismatchError(
            f"expected a checkpoint of the {' or '.join(families)} family, got one of {nearest.family} "
            f"({nearest.scheme.name} names); use the backbone of that family"
        )
    raise CheckpointMismatchError(
        f"not a checkpoint of the {' or '.join(families)} family in a known naming scheme; the nearest is "
        f"{nearest.scheme.name!r} of {nearest.family}"
        + (f" under the prefix {nearest.prefix!r}" if nearest.prefix else "")
        + f", which does not know {len(faults)} of {len(nearest.state)} keys: {', '.join(faults[:LISTED])}"
    )


def _contradict(fits: Sequence[Found]) -> bool:
    return any(found.meaning() != fits[0].meaning() for found in fits[1:])


def _choice(fits: Sequence[Found]) -> str:
    """What tells candidates apart: their prefixes, if those of one prefix agree; else their names."""
    first = {found.prefix: found.meaning() for found in reversed(fits)}
    what = "prefix" if len(first) > 1 and all(found.meaning() == first[found.prefix] for found in fits) else "scheme"
    values = dict.fromkeys(repr(found.prefix if what == "prefix" else found.scheme.name) for found in fits)
    return f"{what}={' or '.join(values)}, in a config init_cfg=dict(type='Pretrained', checkpoint=..., {what}=...)"


def _names(families: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(row.name for family in families for row in SCHEMES[family]))


def _fits(found: Found) -> bool:
    return not found.lacks() and all(find_rule(key, found.scheme.rules) for key in found.state)


def _is_readable(found: Found) -> bool:
    """Whether the shapes are those of the scheme: the number of axes of a position embedding tells two forms apart."""
    try:
        found.ours()
    except CheckpointMismatchError:
        return False
    return True


def _parts(state: Mapping[str, Tensor], prefix: str | None) -> list[tuple[str, dict, dict]]:
    """Ways to see a backbone in a state dict: its prefix, its tensors without it, and the rest."""
    starts = (
        ("", *PREFIXES) if prefix is None else (prefix if prefix.endswith(("/", ".")) or not prefix else f"{prefix}.",)
    )
    parts = []
    for start in starts:
        part = {key.removeprefix(start): value for key, value in state.items() if key.startswith(start)}
        if part:
            parts.append((start, part, {key: value for key, value in state.items() if not key.startswith(start)}))
    if not parts:
        raise CheckpointMismatchError(
            f"no key starts with {starts[0]!r}; the first are {', '.join(list(state)[:5])}; leave prefix out to have "
            f"the usual ones found"
        )
    return parts


BLOCK = re.compile(r"stages\.(\d+)\.blocks\.(\d+)\.(.+)")


def sizes(family: str, ours: Mapping[str, Tensor]) -> dict[str, object]:
    """What the parameters of a backbone by our names tell of its arch: fields of the family's row in
    `vitdense.backbones.variants`, of a damaged checkpoint as far as they go."""
    if family == "vit":
        return _vit_sizes(ours)
    depths: dict[int, int] = {}
    for key in ours:
        if found := BLOCK.fullmatch(key):
            stage, block = int(found[1]), int(found[2])
            depths[stage] = max(depths.get(stage, 0), block + 1)
    common = {
        "embed_dims": len(ours.get("patch_embed.proj.weight", ())),
        "depths": tuple(depths[stage] for stage in sorted(depths)),
    }
    return common | (_mvit_sizes(ours, common["embed_dims"]) if family == "mvit" else _swin_sizes(family, ours))


def _swin_sizes(family: str, ours: Mapping[str, Tensor]) -> dict[str, object]:
    heads, extra = {}, 0
    for key, value in ours.items():
        if not (found := BLOCK.fullmatch(key)):
            continue
        stage, block, name = int(found[1]), int(found[2]), found[3]
        if name == "attn.bias.relative_position_bias_table":
            heads[stage] = value.shape[-1]
        elif name == "attn.logit_scale":
            heads[stage] = value.shape[0]
        elif name == "norm3.weight":
            extra = min(extra or block + 1, block + 1)
    every = {"extra_norm_every": extra} if family == "swin_v2" else {}
    return {"num_heads": tuple(heads[stage] for stage in sorted(heads)), **every}


def _mvit_sizes(ours: Mapping[str, Tensor], width: int) -> dict[str, object]:
    """No parameter tells the heads where there is neither a pooling by convolution nor a relative position, as in
    MViT v1 (they are 0 then), nor the residual pooling, which all published sizes have that pool by convolution."""
    first = "stages.0.blocks.0.attn."
    per_head = ours.get(f"{first}norm_q.weight", ours.get(f"{first}bias.rel_pos_h"))
    is_conv = any(key.endswith(".attn.pool_q.weight") for key in ours)
    second = ours.get("stages.1.blocks.0.attn.qkv.weight")
    in_mlp = second is not None and second.shape[0] == 3 * second.shape[-1]
    return {
        "num_heads": width // per_head.shape[-1] if per_head is not None else 0,
        "growth": "mlp" if in_mlp else "attention",
        "pool": "conv" if is_conv else "max",
        "relative_position": any(key.endswith(".attn.bias.rel_pos_h") for key in ours),
        "absolute_position": "absolute_pos_embed.table" in ours,
        "residual_pooling": is_conv,
    }


def _vit_sizes(ours: Mapping[str, Tensor]) -> dict[str, object]:
    """The heads, which only relative positions tell, are those of the published model of this width, or 0. LayerScale
    has the value that DeiT III initialises it with; whether the stochastic depth is constant, nothing tells."""
    shapes = {key: tuple(value.shape) for key, value in ours.items()}
    patch = shapes.get("patch_embed.proj.weight", ())
    width = (patch or shapes.get("patch_embed.proj.6.weight") or (0,))[0]  # that of the last step of an hMLP
    blocks = (int(found[1]) for key in ours if (found := re.match(r"blocks\.(\d+)\.", key)))
    per_head = next((shape[-1] for key, shape in shapes.items() if key.endswith(".bias.rel_pos_h") and shape), 0)
    return {
        "embed_dims": width,
        "depth": max(blocks, default=-1) + 1,
        "num_heads": width // per_head if per_head else VIT_SIZES.get(width, ("", 0, 0))[2],
        "patch_size": patch[-1] if patch else HierarchicalStem.patch_size,
        "distilled": "tokens.dist_token" in ours,
        "token_position": "tokens.cls_position" in ours,
        "layer_scale": 1e-4 if "blocks.0.gamma_1" in ours else None,
    }


def options(family: str, ours: Mapping[str, Tensor]) -> dict[str, object]:
    """What the parameters of a backbone by our names tell of its constructor's arguments beside the arch."""
    if family != "vit":
        return {}
    is_patch = "patch_embed.proj.weight" in ours
    return {
        "stem": "patch" if is_patch else "hmlp" if "patch_embed.proj.1.running_mean" in ours else "hmlp_ln",
        "parallel": 2 if "blocks.0.attn1.qkv.weight" in ours else 1,
        "relative_position": any(key.endswith(".bias.rel_pos_h") for key in ours),
    }


VIT_KINDS = {  # name of the arch by what the checkpoint has, and the sizes there are
    (False, True, None): ("vit_{}", ("tiny", "small", "base", "large", "huge")),
    (True, True, None): ("deit_{}_distilled", ("tiny", "small", "base")),
    (False, False, 1e-4): ("deit3_{}", ("small", "medium", "base", "large", "huge")),
}


def vit_arch(told: Mapping[str, object]) -> str | None:
    """The name of the ViT of these sizes, if it has one."""
    name, depth, heads = VIT_SIZES.get(told["embed_dims"], ("", 0, 0))
    patch = 14 if name == "huge" else 16
    form, names = VIT_KINDS.get((told["distilled"], told["token_position"], told["layer_scale"]), ("", ()))
    fits = (told["depth"], told["num_heads"], told["patch_size"]) == (depth, heads, patch)
    return form.format(name) if fits and name in names else None


def advice(family: str, theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> str:
    """How a checkpoint and a model of a family, both by our names, differ in what their parameters tell, and what to do
    about it; nothing if in nothing."""
    told, has = (sizes(family, state) for state in (theirs, ours))
    beside = {name: value for name, value in options(family, theirs).items() if value != options(family, ours)[name]}
    if beside.get("relative_position") is False:
        del beside["relative_position"]  # that may be fresh
    if told == has and not beside:
        return ""
    arch = vit_arch(told) if family == "vit" else None
    give = [f"arch={arch!r}" if arch else "the arch that fits"] if told != has else []
    give += [f"{name}={value!r}" for name, value in beside.items()]
    return (
        f" It has {told | beside}, the model {has | {name: options(family, ours)[name] for name in beside}}: "
        f"give {' and '.join(give)}."
    )


def windows(ours: Mapping[str, Tensor]) -> tuple[tuple[int, int], ...]:
    """Windows (h, w) in tokens of every stage of a Swin by our names, as far as a table or an index tells them."""
    told: dict[int, tuple[int, int]] = {}
    for key, value in ours.items():
        if not (found := BLOCK.fullmatch(key)):
            continue
        stage, name = int(found[1]), found[3]
        if name == "attn.bias.relative_position_bias_table":
            told[stage] = tuple((side + 1) // 2 for side in value.shape[:2])
        elif name == "attn.bias.index":
            told.setdefault(stage, (math.isqrt(value.shape[0]),) * 2)
    return tuple(told[stage] for stage in sorted(told))
