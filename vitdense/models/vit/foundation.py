"""Naming schemes of foundation models on ViTs: DINOv2, DINOv3, EVA-02 and others."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.rename import Layout, Rule, Scheme, Transform
from vitdense.checkpoint.schemes import (
    CLASS_POSITION,
    CLASS_TOKEN,
    FLAT_POSITION,
    NO_BIAS,
    PATCH,
    join_position,
    patch_bias_optional,
    read_only,
    same,
    split_position,
)


def _join(parts: int) -> Transform:
    return Transform(lambda *x: torch.cat(x), lambda x: x.chunk(parts))


def _mask(bias: Tensor) -> tuple[Tensor, Tensor]:
    q, v = bias.chunk(2)  # [C] each
    one, zero = torch.ones_like(q), torch.zeros_like(q)
    return torch.cat([q, zero, v]), torch.cat([one, zero, one])  # [3*C] each


def _unmask(bias: Tensor, mask: Tensor) -> Tensor:
    """Biases of queries and values, ``[2 C]``, without the bias of keys, which the mask removes."""
    bias = torch.cat(bias.chunk(3)[::2])  # [2*C]
    expected = _mask(bias)[1]
    if mask.shape != expected.shape or (mask != expected).any():
        raise CheckpointMismatchError(
            "attn.qkv.bias_mask: expected 1 for queries and values and 0 for keys; it is NaN in a model that was saved "
            "before its weights were loaded"
        )
    return bias


def _with_position(table: Tensor, *of_token: Tensor) -> Tensor:
    if of_token and not of_token[0].any():
        raise CheckpointMismatchError(
            "the position of the class token is zero, as from a file of timm, which holds the sum of both: they cannot "
            "be separated; convert the authors' file, or convert to vitdense or timm"
        )
    return join_position(table, *of_token)


def _packed(state: Mapping[str, Tensor]) -> dict[str, str]:
    names = {}
    for key, weight in state.items():
        start = key.removesuffix("fc1.weight")
        second = state.get(f"{start}fc2.weight")
        if start == key or second is None or not weight.ndim == second.ndim == 2:
            continue
        if len(weight) == 2 * second.shape[1]:
            for theirs, ours in (("fc1", "w12"), ("fc2", "w3")):
                names |= {f"{start}{theirs}.{x}": f"{start}{ours}.{x}" for x in ("weight", "bias")}
    return names


def _unpacked(ours: Mapping[str, Tensor]) -> dict[str, str]:
    return {key: key.replace(".mlp.w12.", ".mlp.fc1.").replace(".mlp.w3.", ".mlp.fc2.") for key in ours}


# timm has the same names for layers of an MLP and of some SwiGLUs, whose first layer is twice as wide.
PACKED = Layout(_packed, _unpacked)


Names = Mapping[str | tuple[str, ...], str]  # part of a block: their name or names -> ours


def block_of(names: Names, path: str = "blocks.{i}.") -> tuple[Rule, ...]:
    """Parts of a block at `path`."""
    return tuple(
        Rule(tuple(path + name for name in theirs), f"blocks.{{i}}.{ours}", _join(len(theirs)))
        if isinstance(theirs, tuple)
        else Rule(path + theirs, f"blocks.{{i}}.{ours}")
        for theirs, ours in names.items()
    )


def named(*names: str) -> Names:
    return {name: name for name in names}


def _split_qkv(layer: str, *parts: str, names: Sequence[str] = "qkv") -> Names:
    """Names of queries, keys and values as separate layers; ours are one layer."""
    return {tuple(f"{layer.format(x)}.{part}" for x in names): f"attn.qkv.{part}" for part in parts}


def _gated(first: str, second: str, last: str) -> Names:
    """Names of a SwiGLU whose first two layers are separate; ours are one layer."""
    return {(f"{first}.{x}", f"{second}.{x}"): f"mlp.w12.{x}" for x in ("weight", "bias")} | {f"{last}.*": "mlp.w3.*"}


def _position(name: str) -> Rule:
    """A flat position embedding with a row for the class token."""
    of_token = ("tokens.cls_position",)
    change = Transform(split_position, _with_position)
    return Rule(name, ("absolute_pos_embed.table", *of_token), change, optional=of_token)


NORMS = named("norm1.*", "norm2.*")
MLP = named("mlp.fc1.*", "mlp.fc2.*")
ATTENTION = named("attn.qkv.weight", "attn.qkv.bias", "attn.proj.*")
_JOINED = {**NORMS, **named("attn.qkv.weight", "attn.proj.*")}
PLAIN = {**NORMS, **ATTENTION, **MLP}
SCALES = {"ls1.gamma": "gamma_1", "ls2.gamma": "gamma_2"}

_DINOV2_BLOCK = {**PLAIN, **SCALES, **named("mlp.w12.*", "mlp.w3.*")}
_DINOV2 = (
    *(*PATCH, CLASS_TOKEN, _position("pos_embed"), *same("mask_token", "norm.*"), *block_of(_DINOV2_BLOCK)),
    Rule("register_tokens", "tokens.register_tokens"),
    *read_only(*block_of(_DINOV2_BLOCK, "blocks.{c}.{i}.")),  # of training, with block_chunks
    *read_only(*block_of({"mlp.c_fc.*": "mlp.fc1.*", "mlp.c_proj.*": "mlp.fc2.*"})),  # TIPSv2, saved by transformers
)
# The sum of the class token and its position.
_MERGED = Transform(lambda token: (token, torch.zeros_like(token)), lambda token, position: token + position)
_HEAD = same("norm.*", "fc_norm.*", "head.weight", "head.bias")
_TIMM_REGISTERS = Rule("reg_token", "tokens.register_tokens")
_TIMM_DINOV2 = (
    *(*PATCH, *_HEAD, Rule("cls_token", ("tokens.cls_token", "tokens.cls_position"), _MERGED)),
    *(Rule("pos_embed", "absolute_pos_embed.table", CLASS_POSITION.transform), _TIMM_REGISTERS),
    *block_of({**PLAIN, **SCALES}),
)

_DINOV3 = (
    *(*PATCH, CLASS_TOKEN, *same("mask_token", "norm.*", "local_cls_norm.*")),
    *(Rule("storage_tokens", "tokens.register_tokens"), Rule("rope_embed.periods", "rope.periods")),
    *block_of({**_JOINED, **MLP, **SCALES, **_gated("mlp.w1", "mlp.w2", "mlp.w3")}),
    Rule(
        ("blocks.{i}.attn.qkv.bias", "blocks.{i}.attn.qkv.bias_mask"),
        "blocks.{i}.attn.qkv.qv_bias",
        Transform(_unmask, _mask),
    ),
)

# timm's Eva, which DINOv3 is too.
_EVA = (*PATCH, CLASS_TOKEN, *_HEAD)
_EVA_BIAS = {("attn.q_bias", "attn.v_bias"): "attn.qkv.qv_bias"}
_EVA_JOINED = {**_JOINED, **_EVA_BIAS}
_EVA_APART = {**NORMS, **named("attn.proj.*"), **_split_qkv("attn.{}_proj", "weight")}
GAMMAS = named("gamma_1", "gamma_2")
_EVA_GATED = _gated("mlp.fc1_g", "mlp.fc1_x", "mlp.fc2")
_TIMM_DINOV3 = (*_EVA, _TIMM_REGISTERS, *block_of({**_EVA_JOINED, **GAMMAS}))
_TIMM_EVA02 = (*_EVA, CLASS_POSITION)
# The detector's copies of the tables of rotary positions are rebuilt.
TABLES = same(
    *(f"{path}.freqs_{x}" for path in ("rope_win", "rope_glb", "blocks.{i}.attn.rope") for x in ("cos", "sin"))
)
_DETECTRON2_EVA02 = (
    *(*PATCH, CLASS_POSITION, *TABLES),
    *block_of({**_EVA_APART, **_EVA_BIAS, **_gated("mlp.w1", "mlp.w2", "mlp.w3")}),
    *block_of({"mlp.ffn_ln.*": "mlp.norm.*"}),
)

# Perception Encoder: timm's names, and its authors'.
_TIMM_PE = (
    *(patch_bias_optional("patch_embed.proj"), CLASS_TOKEN, CLASS_POSITION, *same("norm_pre.*")),
    *block_of({**PLAIN, **GAMMAS}),
)
_VECTOR = Transform(lambda x: x[None, None], lambda x: x[0, 0])  # [C] and [1, 1, C]
_ROWS = Transform(lambda x: split_position(x[None]), lambda *x: join_position(*x)[0])  # [N, C]
_POSITIONS = ("absolute_pos_embed.table", "tokens.cls_position")
_PERCEPTION = (
    *(patch_bias_optional("conv1"), Rule("ln_pre.*", "norm_pre.*")),
    Rule("class_embedding", "tokens.cls_token", _VECTOR),
    Rule("positional_embedding", _POSITIONS, _ROWS, optional=_POSITIONS[1:]),
    *block_of(
        {
            **{"ln_1.*": "norm1.*", "ln_2.*": "norm2.*", "ls_1.gamma": "gamma_1", "ls_2.gamma": "gamma_2"},
            **{f"attn.in_proj_{x}": f"attn.qkv.{x}" for x in ("weight", "bias")},
            **{"attn.out_proj.*": "attn.proj.*", "mlp.c_fc.*": "mlp.fc1.*", "mlp.c_proj.*": "mlp.fc2.*"},
        },
        "transformer.resblocks.{i}.",
    ),
)

# transformers.
_EMBEDDINGS = tuple(Rule(f"embeddings.{name}", f"tokens.{name}") for name in ("cls_token", "register_tokens"))
_TRANSFORMERS_SCALES = {"layer_scale1.lambda1": "gamma_1", "layer_scale2.lambda1": "gamma_2"}
_DINOV2_OUTSIDE = (
    *(*_EMBEDDINGS, Rule("embeddings.mask_token", "mask_token"), Rule("layernorm.*", "norm.*")),
    Rule("embeddings.patch_embeddings.projection.*", "patch_embed.proj.*"),
    _position("embeddings.position_embeddings"),
)
_DINOV2_PARTS = {**NORMS, **_TRANSFORMERS_SCALES, **MLP}
_TRANSFORMERS_DINOV2 = (
    *_DINOV2_OUTSIDE,
    *block_of(
        {
            **_DINOV2_PARTS,
            **_split_qkv("attention.attention.{}", "weight", "bias", names=("query", "key", "value")),
            "attention.output.dense.*": "attn.proj.*",
            **{"mlp.weights_in.*": "mlp.w12.*", "mlp.weights_out.*": "mlp.w3.*"},
        },
        "encoder.layer.{i}.",
    ),
)
# The trunk of RF-DETR; TIPSv2 in memory.
_TRANSFORMERS_RFDETR = (
    *_DINOV2_OUTSIDE,
    *block_of(
        {
            **{**_DINOV2_PARTS, **_gated("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")},
            **{**_split_qkv("attention.{}_proj", "weight", "bias"), "attention.o_proj.*": "attn.proj.*"},
        },
        "encoder.layer.{i}.",
    ),
)
# Attention without biases of keys.
_NO_KEY = {
    **{**_split_qkv("attention.{}_proj", "weight"), "attention.o_proj.*": "attn.proj.*"},
    ("attention.q_proj.bias", "attention.v_proj.bias"): "attn.qkv.qv_bias",
}
# The trunk of LW-DETR: `_NO_KEY` is in memory, the rest in files. The authors use the names of timm's Eva.
_TRANSFORMERS_LWDETR = (
    *(Rule("embeddings.projection.*", "patch_embed.proj.*"), _position("embeddings.position_embeddings")),
    *block_of(
        {
            **{"layernorm_before.*": "norm1.*", "layernorm_after.*": "norm2.*", **GAMMAS, **_NO_KEY},
            **{"intermediate.fc1.*": "mlp.fc1.*", "intermediate.fc2.*": "mlp.fc2.*"},
            **_split_qkv("attention.attention.{}", "weight", names=("query", "key", "value")),
            ("attention.attention.query.bias", "attention.attention.value.bias"): "attn.qkv.qv_bias",
            "attention.output.*": "attn.proj.*",
        },
        "encoder.layer.{i}.",
    ),
)
_TRANSFORMERS_SIGLIP = (
    Rule("embeddings.patch_embedding.*", "patch_embed.proj.*"),
    Rule("embeddings.position_embedding.weight", _POSITIONS[0], _ROWS),
    *(Rule("post_layernorm.*", "norm.*"), Rule("head.*", "attn_pool.*")),
    *block_of(
        {
            **{"layer_norm1.*": "norm1.*", "layer_norm2.*": "norm2.*", **MLP},
            **_split_qkv("self_attn.{}_proj", "weight", "bias"),
            "self_attn.out_proj.*": "attn.proj.*",
        },
        "encoder.layers.{i}.",
    ),
)


# Names in a block of transformers' DINOv3: attention, norms and scales; and in an MLP.
_DINOV3_ATTENTION = {**NORMS, **_TRANSFORMERS_SCALES, **_NO_KEY}
_DINOV3_MLP = {"mlp.up_proj.*": "mlp.fc1.*", "mlp.down_proj.*": "mlp.fc2.*"}
DINOV3_LAYERS = {**_DINOV3_ATTENTION, **_DINOV3_MLP}
_DINOV3_GATED = _gated("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
_MASK_TOKEN = Transform(lambda token: token[0], lambda token: token[None])  # [1, 1, C] and [1, C]


def _transformers_dinov3(ffn: Names, marker: str = "") -> Scheme:
    block = {**_DINOV3_ATTENTION, **ffn}
    rules = (
        *(*_EMBEDDINGS, Rule("embeddings.mask_token", "mask_token", _MASK_TOKEN), *same("norm.*")),
        Rule("embeddings.patch_embeddings.*", "patch_embed.proj.*"),
        *block_of(block, "layer.{i}."),
        *read_only(*block_of(block, "model.layer.{i}.")),  # in memory, from transformers 5.3 on
    )
    return Scheme("transformers", rules, marker)


# Trunks of EoMT: DINOv3 as its authors rename it, and both as transformers does.
_EOMT_DINOV3 = (
    *(Rule(f"patch_embed.{name}", f"tokens.{name}") for name in ("cls_token", "register_tokens")),
    Rule("patch_embed.mask_token", "mask_token", _MASK_TOKEN),
    *(Rule("patch_embed.patch_embeddings.*", "patch_embed.proj.*"), *same("norm.*")),
)
_TRANSFORMERS_EOMT = (
    Rule("embeddings.cls_token", ("tokens.cls_token", "tokens.cls_position"), _MERGED),
    _EMBEDDINGS[1],
    Rule("embeddings.position_embeddings.weight", "absolute_pos_embed.table", _ROWS),
    *(Rule("embeddings.patch_embeddings.projection.*", "patch_embed.proj.*"), Rule("layernorm.*", "norm.*")),
    *block_of(
        {
            **{**NORMS, **_TRANSFORMERS_SCALES, **MLP, "attention.out_proj.*": "attn.proj.*"},
            **_split_qkv("attention.{}_proj", "weight", "bias"),
            **{"mlp.weights_in.*": "mlp.w12.*", "mlp.weights_out.*": "mlp.w3.*"},  # before transformers 5.24
            **_DINOV3_GATED,
        },
        "layers.{i}.",
    ),
)
_TRANSFORMERS_EOMT_DINOV3 = (
    *(*_EMBEDDINGS, Rule("embeddings.patch_embeddings.*", "patch_embed.proj.*"), Rule("layernorm.*", "norm.*")),
)


def _flat_patches(*axes: str) -> Transform:
    """Transform of a linear layer on flat patches, with channels in the order of `axes`, to a convolution, and back.

    The convolution's bias is zero if the layer has none.
    """
    order, back = ([axes.index(x) + 1 for x in "cyx"], ["cyx".index(x) + 1 for x in axes])

    def forward(weight: Tensor, *bias: Tensor) -> tuple[Tensor, ...]:
        side = math.isqrt(weight.shape[1] // 3)
        weight = weight.unflatten(1, tuple(3 if x == "c" else side for x in axes)).permute(0, *order)  # [C, 3, p, p]
        return NO_BIAS.forward(weight, *bias)

    return Transform(forward, lambda weight, *bias: NO_BIAS.inverse(weight.permute(0, *back).flatten(1), *bias))


def _flat_patch_rule(theirs: str, axes: str) -> Rule:
    names = zip(*((f"{theirs}.{x}", f"patch_embed.proj.{x}") for x in ("weight", "bias")))
    return Rule(*names, _flat_patches(*axes), optional=(f"{theirs}.bias",))


# C-RADIO: its authors' names, which transformers writes with other names of LayerScale; and NaFlexVit's.
_TOKENS = Transform(lambda x: x[None].split((1, len(x) - 1), dim=1), lambda *x: torch.cat(x, dim=1)[0])
_RADIO = (
    _flat_patch_rule("patch_generator.embedder", "cyx"),
    Rule("patch_generator.pos_embed", "absolute_pos_embed.table", FLAT_POSITION),
    Rule("patch_generator.cls_token.token", ("tokens.cls_token", "tokens.register_tokens"), _TOKENS),
    *block_of({**PLAIN, "ls1.grandma": "gamma_1", "ls2.grandma": "gamma_2"}),
    *read_only(*block_of(_TRANSFORMERS_SCALES)),
)
_TIMM_NAFLEX = (
    _flat_patch_rule("embeds.proj", "yxc"),
    *(Rule("embeds.pos_embed", "absolute_pos_embed.table"), Rule("embeds.cls_token", "tokens.cls_token")),
    *(Rule("embeds.reg_token", "tokens.register_tokens"), *block_of({**PLAIN, **SCALES})),
)
SCHEMES = (
    # timm's files without registers have these names, too.
    Scheme("dinov2", _DINOV2, layout=Layout(_packed, lambda ours: {key: key for key in ours})),
    Scheme("dinov3", _DINOV3, r"rope_embed\.periods"),
    Scheme("timm", _TIMM_NAFLEX, r"embeds\.proj\.weight"),  # before forms of class tokens with positions
    Scheme("timm", (*_TIMM_DINOV3, *block_of(MLP)), "reg_token"),
    Scheme("timm", (*_TIMM_DINOV3, *block_of(_EVA_GATED)), "reg_token"),
    Scheme("timm", _TIMM_DINOV2, "reg_token", layout=PACKED),
    Scheme("timm", (*_TIMM_EVA02, *block_of({**_EVA_JOINED, **MLP, **GAMMAS})), r".+\.q_bias", layout=PACKED),
    Scheme(
        "timm",
        (
            *(*_TIMM_EVA02, *block_of({**_EVA_APART, **_EVA_GATED, **named("mlp.norm.*")})),
            *block_of({("attn.q_proj.bias", "attn.v_proj.bias"): "attn.qkv.qv_bias"}),
        ),
        r".+\.fc1_g\.weight",
    ),
    Scheme("detectron2", _DETECTRON2_EVA02, r".+\.q_bias", prefix="backbone.net.", wrapper="model"),
    Scheme("radio", _RADIO, prefix="radio_model.model."),
    Scheme("timm", _TIMM_PE, r"norm_pre\.weight"),
    Scheme("perception", _PERCEPTION, r"ln_pre\.weight"),
    Scheme("transformers", _TRANSFORMERS_SIGLIP, r"embeddings\.position_embedding\.weight", prefix="vision_model."),
    Scheme("transformers", _TRANSFORMERS_DINOV2),
    Scheme("transformers_lwdetr", read_only(*_TRANSFORMERS_LWDETR), r"encoder\.layer\.0\.layernorm_before\.weight"),
    Scheme("transformers_rfdetr", read_only(*_TRANSFORMERS_RFDETR), r"encoder\.layer\.0\.attention\.o_proj\.weight"),
    _transformers_dinov3(_DINOV3_MLP),
    _transformers_dinov3(_DINOV3_GATED, r".+\.gate_proj\.weight"),
    Scheme("eomt_dinov3", (*_EOMT_DINOV3, *block_of(DINOV3_LAYERS)), r"patch_embed\.cls_token"),
    Scheme("eomt_dinov3", (*_EOMT_DINOV3, *block_of({**_DINOV3_ATTENTION, **_DINOV3_GATED})), r".+\.gate_proj\.weight"),
    # Never written: transformers' EoMT is a whole model.
    Scheme("transformers_eomt", read_only(*_TRANSFORMERS_EOMT), r"embeddings\.position_embeddings\.weight"),
    *(
        Scheme("transformers_eomt", read_only(*_TRANSFORMERS_EOMT_DINOV3, *block_of(block, "layers.{i}.")), marker)
        for block, marker in (
            (DINOV3_LAYERS, r"layers\.0\.attention\.o_proj\.weight"),
            ({**_DINOV3_ATTENTION, **_DINOV3_GATED}, r"layers\.0\.mlp\.gate_proj\.weight"),
        )
    ),
)
