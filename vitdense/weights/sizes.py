"""What the parameters of a backbone, by our names, tell of its arch and its options."""

import math
import re
from collections.abc import Mapping

from torch import Tensor

from vitdense.layers.blocks import HierarchicalStem
from vitdense.weights.changes import VIT_SIZES

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
        "embed_dims": _length(ours.get("patch_embed.proj.weight")),
        "depths": tuple(depths[stage] for stage in sorted(depths)),
    }
    return common | (_mvit_sizes(ours, common["embed_dims"]) if family == "mvit" else _swin_sizes(family, ours))


def _length(value: Tensor | None, axis: int = 0) -> int:
    """Of the first or last axis; 0 where there is none, as in a damaged checkpoint."""
    return value.shape[axis] if value is not None and value.ndim else 0


def _swin_sizes(family: str, ours: Mapping[str, Tensor]) -> dict[str, object]:
    heads, extra = {}, 0
    for key, value in ours.items():
        if not (found := BLOCK.fullmatch(key)):
            continue
        stage, block, name = int(found[1]), int(found[2]), found[3]
        if name == "attn.bias.relative_position_bias_table":
            heads[stage] = _length(value, -1)
        elif name == "attn.logit_scale":
            heads[stage] = _length(value)
        elif name == "norm3.weight":
            extra = min(extra or block + 1, block + 1)
    every = {"extra_norm_every": extra} if family == "swin_v2" else {}
    return {"num_heads": tuple(heads[stage] for stage in sorted(heads)), **every}


def _mvit_sizes(ours: Mapping[str, Tensor], width: int) -> dict[str, object]:
    """No parameter tells the heads where there is neither a pooling by convolution nor a relative position, as in
    MViT v1 (they are 0 then), nor the residual pooling, which all published sizes have that pool by convolution."""
    first = "stages.0.blocks.0.attn."
    per_head = _length(ours.get(f"{first}norm_q.weight", ours.get(f"{first}bias.rel_pos_h")), -1)
    is_conv = any(key.endswith(".attn.pool_q.weight") for key in ours)
    second = ours.get("stages.1.blocks.0.attn.qkv.weight")
    in_mlp = second is not None and _length(second) == 3 * _length(second, -1)
    return {
        "num_heads": width // per_head if per_head else 0,
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
