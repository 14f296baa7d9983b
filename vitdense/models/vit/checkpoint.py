"""Naming schemes of the plain ViT: ViT, DeiT, DeiT III, CaiT, MAE, ViTDet; and those of `foundation`."""

from collections.abc import Mapping

from vitdense.checkpoint.family import (
    CLASS_POSITION,
    CLASS_TOKEN,
    CLASSIFIER,
    LORA,
    OUTPUT_NORMS,
    PATCH,
    PERIODS,
    PRETRAINING,
    REBUILT,
    Family,
    patch_bias_optional,
    position,
    prefixed,
    read_only,
    same,
)
from vitdense.checkpoint.rename import Rule, Scheme
from vitdense.models.vit.foundation import PACKED, TABLES
from vitdense.models.vit.foundation import SCHEMES as FOUNDATION


def _block(names: Mapping[str, str], path: str = "blocks.{i}.", branch: int = 0) -> tuple[Rule, ...]:
    """Attention and MLP of a block at `path`, or one `branch` of parallel ones. `names` differ from ours."""
    rules = []
    for name in ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2"):
        layer, dot, part = name.partition(".")
        ours = f"{layer}{branch or ''}{dot}{part}.*"
        for tail in ("weight", "bias") if part == "qkv" else ("*",):  # in other schemes qkv is split
            theirs, new = (pattern.replace("*", tail) for pattern in (names.get(name, ours), ours))
            rules.append(Rule(path + theirs, "blocks.{i}." + new))
    return tuple(rules)


def _layer_scale(first: str, second: str, path: str = "blocks.{i}.", branch: int = 0) -> tuple[Rule, ...]:
    """LayerScale of attention and MLP; see `_block`."""
    tail = f"_{branch}" * (branch > 0)
    return Rule(path + first, f"blocks.{{i}}.gamma_1{tail}"), Rule(path + second, f"blocks.{{i}}.gamma_2{tail}")


def _timm_branch(n: int) -> tuple[Rule, ...]:
    """One of timm's parallel attentions and MLPs."""
    attention, mlp = f"attns.{n}.", f"ffns.{n}."
    names = {"norm1": f"{attention}norm.*", "norm2": f"{mlp}norm.*"}
    names |= {name: f"{attention}{name}.*" for name in ("attn.qkv", "attn.proj")}
    names |= {name: f"{mlp}{name}.*" for name in ("mlp.fc1", "mlp.fc2")}
    return *_block(names, branch=n), *_layer_scale(f"{attention}ls.gamma", f"{mlp}ls.gamma", branch=n)


_TOKENS = (
    CLASS_TOKEN,
    Rule("dist_token", "tokens.dist_token"),
    position("tokens.cls_position", "tokens.dist_position"),
)
_HEAD = same("norm.*", "fc_norm.*", "head.weight", "head.bias", "head_dist.*")
_BRANCHES = range(4)  # of parallel blocks, at most
_BLOCKS = tuple(
    rule
    for n in _BRANCHES
    for rule in (
        *_block({}, branch=n),
        *_layer_scale(*(f"gamma_{kind}{f'_{n}' * (n > 0)}" for kind in (1, 2)), branch=n),
    )
)
_MAE = same(
    "mask_token", "decoder_pos_embed", "decoder_blocks.{i}.*", *(f"decoder_{x}.*" for x in ("embed", "norm", "pred"))
)
_TALKING = tuple(f"blocks.{{i}}.attn{n or ''}.proj_{x}.*" for n in _BRANCHES for x in "lw")
_CAIT = (  # the authors' names, and timm's
    *same("patch_embed.proj.*", "norm.*", "head.*", *(f"blocks.{{i}}.attn.proj_{x}.*" for x in "lw")),
    *(*_block({}), *_layer_scale("gamma_1", "gamma_2"), position()),
    *(Rule("cls_token", "class_blocks.cls_token"), Rule("blocks_token_only.{i}.*", "class_blocks.blocks.{i}.*")),
)
_HAS_TALKING_HEADS = r"blocks\.\d+\.attn\.proj_l\..+"
_TIMM = (
    *(*PATCH, *_TOKENS, *_HEAD, *same("attn_pool.*", "patch_embed.backbone.*")),  # of SigLIP; of hybrids
    *read_only(Rule("pre_logits.fc.*", "pre_logits.*")),
)
_MM_NAMES = {"norm1": "ln1.*", "norm2": "ln2.*", "mlp.fc1": "ffn.layers.0.0.*", "mlp.fc2": "ffn.layers.1.*"}
_MMSEG_NAMES = {**_MM_NAMES, "attn.qkv": "attn.attn.in_proj_*", "attn.proj": "attn.attn.out_proj.*"}
_MMPRETRAIN = (
    *_TOKENS,
    *(Rule(f"patch_embed.projection.{name}", f"patch_embed.proj.{name}") for name in ("weight", "bias")),
    *_block(_MM_NAMES, "layers.{i}."),
    *_layer_scale("attn.gamma1.weight", "ffn.gamma2.weight", "layers.{i}."),
    *(Rule("ln1.*", "norm.*"), Rule("ln2.*", "fc_norm.*")),
)
_FOUNDATION = same(
    *("tokens.register_tokens", "rope.periods", "local_cls_norm.*", "norm_pre.*", "attn_pool.*"),
    *(f"blocks.{{i}}.{name}" for name in ("attn.qkv.qv_bias", "mlp.w12.*", "mlp.w3.*", "mlp.norm.*")),
)
_RELATIVE_POSITIONS = r".+\.attn\d*\.bias\.rel_pos_[hw]"
FAMILY = Family(
    (
        Scheme(
            "vitdense",
            (
                *same(
                    "patch_embed.proj.*", "patch_embed.backbone.*", "absolute_pos_embed.*", "norm{i}.*", "pre_logits.*"
                ),
                *same(*(f"tokens.{name}_{part}" for name in ("cls", "dist") for part in ("token", "position"))),
                *(*_BLOCKS, *_HEAD, *_MAE, *_FOUNDATION, *TABLES),
                *same(*_TALKING, "class_blocks.cls_token", "class_blocks.blocks.{i}.*"),
                *same(*(f"blocks.{{i}}.attn{n or ''}.qkv.lora.*" for n in _BRANCHES)),
                *same(*(f"blocks.{{i}}.attn{n or ''}.bias.rel_pos_{axis}" for n in _BRANCHES for axis in "hw")),
            ),
            wrapper="state_dict",
        ),
        Scheme(
            "official",  # DeiT, DeiT III with parallel blocks and the hMLP stem, and MAE with its decoder
            (*same("patch_embed.proj.*"), *_TOKENS, *_BLOCKS, *_HEAD, *_MAE),
            wrapper="model",
        ),
        *(
            Scheme(name, _CAIT, _HAS_TALKING_HEADS, wrapper=wrapper)
            for name, wrapper in (("official", "model"), ("timm", None))
        ),
        Scheme("timm", (*_TIMM, *_block({}), *_layer_scale("ls1.gamma", "ls2.gamma")), layout=PACKED),
        Scheme("timm", (*_TIMM, *(rule for n in _BRANCHES for rule in _timm_branch(n)))),
        Scheme(
            "mmseg",
            (
                *(CLASS_TOKEN, CLASS_POSITION, Rule("ln1.*", "norm.*")),
                patch_bias_optional("patch_embed.projection"),  # its default is none
                *_block(_MMSEG_NAMES, "layers.{i}."),
            ),
            wrapper="state_dict",
        ),
        Scheme(
            "mmpretrain",
            (
                *prefixed("backbone.", _MMPRETRAIN),
                *(Rule(f"head.layers.{name}.*", f"{name}.*") for name in ("head_dist", "pre_logits")),
                *(Rule(f"head.layers.head.{name}", f"head.{name}") for name in ("weight", "bias")),
                *read_only(Rule("head.fc.*", "head.*")),  # its plain linear head
            ),
            wrapper="state_dict",
        ),
        Scheme("mmpretrain", _MMPRETRAIN, prefix="backbone.", wrapper="state_dict"),
        Scheme(
            "detectron2",  # ViTDet: no class token, but the position embedding of a model that had one
            (
                *(*PATCH, CLASS_POSITION, *_block({})),
                *(Rule(f"blocks.{{i}}.attn.{x}", f"blocks.{{i}}.attn.bias.{x}") for x in ("rel_pos_h", "rel_pos_w")),
            ),
            prefix="backbone.net.",
            wrapper="model",
        ),
        *FOUNDATION,
    ),
    ignored=(CLASSIFIER, OUTPUT_NORMS, PRETRAINING, REBUILT, r"class_blocks\..+"),
    # ViTDet adds relative positions to models that were pretrained without them. Files of timm and transformers have no
    # periods; some of timm's have no biases of queries and values, where these are zero.
    may_be_missing=(OUTPUT_NORMS, LORA, _RELATIVE_POSITIONS, PERIODS, r"blocks\.\d+\.attn\.qkv\.qv_bias"),
)
