"""Naming schemes of the plain ViT: ViT, DeiT, DeiT III, MAE, ViTDet; and the schemes of `foundation`."""

import math
from collections.abc import Mapping

from torch import Tensor, nn

from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.rename import Rule, Scheme
from vitdense.checkpoint.schemes import (
    CLASS_POSITION,
    CLASS_TOKEN,
    LORA,
    OUTPUT_NORMS,
    PATCH,
    PERIODS,
    Family,
    patch_bias_optional,
    position,
    prefixed,
    read_only,
    same,
)
from vitdense.models.vit.foundation import ATTENTION, GAMMAS, PACKED, PLAIN, SCALES, TABLES, block_of
from vitdense.models.vit.foundation import SCHEMES as FOUNDATION
from vitdense.models.vit.mask_heads import HEADS as MASK_HEADS
from vitdense.models.vit.rfdetr import HEADS as RFDETR
from vitdense.models.vit.timm_parts import parts_in_timm

_TOKENS = (
    CLASS_TOKEN,
    Rule("dist_token", "tokens.dist_token"),
    position("tokens.cls_position", "tokens.dist_position"),
)
_BLOCK = block_of({**PLAIN, **GAMMAS})
_HEAD = same("norm.*", "fc_norm.*", "head.weight", "head.bias", "head_dist.*")
_MAE = same(
    "mask_token", "decoder_pos_embed", "decoder_blocks.{i}.*", *(f"decoder_{x}.*" for x in ("embed", "norm", "pred"))
)
TIMM = (
    *(*PATCH, *_TOKENS, *_HEAD, *same("attn_pool.*")),  # of SigLIP
    *read_only(Rule("pre_logits.fc.*", "pre_logits.*")),
)
_MM_BLOCK = {"ln1.*": "norm1.*", "ln2.*": "norm2.*", "ffn.layers.0.0.*": "mlp.fc1.*", "ffn.layers.1.*": "mlp.fc2.*"}
_MMPRETRAIN = (
    *_TOKENS,
    *(Rule(f"patch_embed.projection.{name}", f"patch_embed.proj.{name}") for name in ("weight", "bias")),
    *block_of(
        {**_MM_BLOCK, **ATTENTION, "attn.gamma1.weight": "gamma_1", "ffn.gamma2.weight": "gamma_2"}, "layers.{i}."
    ),
    *(Rule("ln1.*", "norm.*"), Rule("ln2.*", "fc_norm.*")),
)
_FOUNDATION = same(
    *("tokens.register_tokens", "rope.periods", "local_cls_norm.*", "norm_pre.*", "attn_pool.*"),
    *(f"blocks.{{i}}.{name}" for name in ("attn.qkv.qv_bias", "mlp.w12.*", "mlp.w3.*", "mlp.norm.*")),
)


def check_rotary_windows(model: nn.Module, ours: Mapping[str, Tensor]) -> None:
    """Check windows by the tables of angles in files of EVA-02's detectors; the parameters fit any window.

    Every block has a table with a row for each token, which shows whether the block has windows.
    """
    tables = {key: x for key, x in ours.items() if key.endswith(".freqs_cos")}
    if wrong := [f"{key} {list(x.shape)}" for key, x in tables.items() if x.ndim != 2]:
        raise CheckpointMismatchError(f"{', '.join(wrong)}: expected [tokens, channels of a head]")
    whole = len(tables.get("rope_glb.freqs_cos", ()))
    for name, block in model.named_modules():
        table = tables.get(f"{name}.attn.rope.freqs_cos")
        if table is not None and len(table) != (math.prod(block.spec.window) if block.spec.window else whole):
            has = f"windows of {math.isqrt(len(table))}" if len(table) != whole else "no windows"
            raise CheckpointMismatchError(
                f"the checkpoint has {has} in {name}, the model {block.spec.window or 'no windows'}: set window_size "
                f"and global_indices as it was trained"
            )


_RELATIVE_POSITIONS = r".+\.attn\.bias\.rel_pos_[hw]"
FAMILY = Family(
    (
        Scheme(
            "vitdense",
            (
                *same("patch_embed.proj.*", "absolute_pos_embed.*", "norm{i}.*", "pre_logits.*"),
                *same(*(f"tokens.{name}_{part}" for name in ("cls", "dist") for part in ("token", "position"))),
                *(*_BLOCK, *_HEAD, *_MAE, *_FOUNDATION, *TABLES),
                *same("blocks.{i}.attn.qkv.lora.*", *(f"blocks.{{i}}.attn.bias.rel_pos_{axis}" for axis in "hw")),
            ),
            wrapper="state_dict",
        ),
        Scheme(
            "official",  # DeiT, DeiT III, also with the hMLP stem, and MAE with its decoder
            (*same("patch_embed.proj.*"), *_TOKENS, *_BLOCK, *_HEAD, *_MAE),
            wrapper="model",
        ),
        Scheme("timm", (*TIMM, *block_of({**PLAIN, **SCALES})), layout=PACKED),
        Scheme(
            "mmseg",
            (
                *(CLASS_TOKEN, CLASS_POSITION, Rule("ln1.*", "norm.*")),
                patch_bias_optional("patch_embed.projection"),  # its default is none
                *block_of(_MM_BLOCK, "layers.{i}."),
                *block_of({f"in_proj_{x}": f"attn.qkv.{x}" for x in ("weight", "bias")}, "layers.{i}.attn.attn."),
                *block_of({"out_proj.*": "attn.proj.*"}, "layers.{i}.attn.attn."),
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
                *(*PATCH, CLASS_POSITION, *block_of(PLAIN)),
                *(Rule(f"blocks.{{i}}.attn.{x}", f"blocks.{{i}}.attn.bias.{x}") for x in ("rel_pos_h", "rel_pos_w")),
            ),
            prefix="backbone.net.",
            wrapper="model",
        ),
        *FOUNDATION,
    ),
    # ViTDet adds relative positions to models pretrained without them. Files of timm and transformers have no periods.
    # Some files of timm have no biases of queries and values, which are zero.
    may_be_missing=(OUTPUT_NORMS, LORA, _RELATIVE_POSITIONS, PERIODS, r"blocks\.\d+\.attn\.qkv\.qv_bias"),
    parts_in_timm=parts_in_timm,
    check=check_rotary_windows,
)
HEADS = {**MASK_HEADS, **RFDETR}
