"""Naming schemes of CaiT: ours, and the authors', which are timm's."""

from vitdense.checkpoint.rename import Rule, Scheme
from vitdense.checkpoint.schemes import CLASSIFIER, OUTPUT_NORMS, PRETRAINING, REBUILT, Family, position, same
from vitdense.models.vit.checkpoint import FAMILY as VIT
from vitdense.models.vit.foundation import GAMMAS, PLAIN, block_of

_TALKING = same(*(f"blocks.{{i}}.attn.proj_{x}.*" for x in "lw"))
_THEIRS = (
    *(*same("patch_embed.proj.*", "norm.*", "head.*"), *_TALKING),
    *(*block_of({**PLAIN, **GAMMAS}), position()),
    *(Rule("cls_token", "class_blocks.cls_token"), Rule("blocks_token_only.{i}.*", "class_blocks.blocks.{i}.*")),
)
FAMILY = Family(
    (
        Scheme(
            "vitdense",
            (*VIT.schemes[0].rules, *_TALKING, *same("class_blocks.cls_token", "class_blocks.blocks.{i}.*")),
            wrapper="state_dict",
        ),
        Scheme("official", _THEIRS, wrapper="model"),
        Scheme("timm", _THEIRS),
    ),
    markers=(r"blocks\.\d+\.attn\.proj_l\.weight",),
    ignored=(CLASSIFIER, OUTPUT_NORMS, PRETRAINING, REBUILT, r"class_blocks\..+"),
    check=VIT.check,
)
