"""Naming schemes of ViT-Adapter: the authors keep trunk and adapter in one flat module."""

from dataclasses import replace

from torch import Tensor

from vitdense.checkpoint.rename import Rule, Scheme, Transform
from vitdense.checkpoint.schemes import LORA, TOKEN_POSITION, Family, same
from vitdense.models.vit.checkpoint import FAMILY as VIT


def _join(table: Tensor, *row: Tensor) -> Tensor:
    """Join with a first row for a class token, which the authors' code skips."""
    return TOKEN_POSITION.inverse(table, *(row or (table.new_zeros(1, 1, table.shape[-1]),)))


_POSITION = ("trunk.absolute_pos_embed.table", "trunk.tokens.cls_position")
_BLOCK = ("norm1.*", "attn.qkv.*", "attn.proj.*", "norm2.*", "mlp.fc1.*", "mlp.fc2.*")
# Our own names of a ViT.
_TRUNK = tuple(replace(rule, theirs=f"trunk.{rule.theirs}", ours=f"trunk.{rule.ours}") for rule in VIT.schemes[0].rules)
_ADAPTER = same("level_embed", "spm.*", "interactions.*", "up.*")
FAMILY = Family(
    (
        Scheme("vitdense", (*_ADAPTER, *_TRUNK, *same("norm{i}.*")), wrapper="state_dict"),
        Scheme(
            "official",
            (
                *(*_ADAPTER, Rule("norm{i+1}.*", "norm{i}.*")),
                Rule("patch_embed.proj.*", "trunk.patch_embed.proj.*"),
                Rule("pos_embed", _POSITION, Transform(TOKEN_POSITION.forward, _join), optional=_POSITION[1:]),
                *(Rule(f"blocks.{{i}}.{name}", f"trunk.blocks.{{i}}.{name}") for name in _BLOCK),
                *(Rule(f"blocks.{{i}}.gamma{n}", f"trunk.blocks.{{i}}.gamma_{n}") for n in (1, 2)),
            ),
            prefix="backbone.",
            wrapper="state_dict",
        ),
    ),
    markers=(r"spm\.stem\.0\.weight",),  # other keys may be a ViT's without class token
    ignored=(r"trunk\.tokens\.cls_position",),
    may_be_missing=(LORA,),
    check=VIT.check,
)
