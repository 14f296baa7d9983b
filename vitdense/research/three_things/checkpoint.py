"""Naming schemes of ViTs with parallel branches: ours, the authors', timm's. The first branch has ViT's names."""

import re
from collections.abc import Iterable
from dataclasses import replace

from vitdense.checkpoint.rename import Rule, Scheme
from vitdense.checkpoint.schemes import Family
from vitdense.models.vit.checkpoint import FAMILY as VIT
from vitdense.models.vit.checkpoint import TIMM
from vitdense.models.vit.foundation import ATTENTION, MLP, block_of

BRANCHES = range(4)  # a block has at most four


def _branch(name: str, n: int) -> str:
    """Our name of a parameter of a block, in its branch `n`: ``attn.qkv.*`` is ``attn1.qkv.*``."""
    if n == 0:
        return name
    return re.sub(r"(?<=blocks\.\{i\}\.)(norm[12]|attn|mlp)", rf"\g<0>{n}", re.sub(r"gamma_[12]$", rf"\g<0>_{n}", name))


def _branches(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    rules = tuple(rules)
    of_blocks = [rule for rule in rules if isinstance(rule.ours, str) and rule.ours.startswith("blocks.{i}.")]
    further = (
        replace(rule, theirs=_branch(rule.theirs, n), ours=_branch(rule.ours, n))
        for rule in of_blocks
        for n in BRANCHES[1:]
    )
    return *rules, *further


def _timm(n: int) -> tuple[Rule, ...]:
    attention = block_of({"norm.*": "norm1.*", **ATTENTION, "ls.gamma": "gamma_1"}, f"blocks.{{i}}.attns.{n}.")
    mlp = block_of({"norm.*": "norm2.*", **MLP, "ls.gamma": "gamma_2"}, f"blocks.{{i}}.ffns.{n}.")
    return tuple(replace(rule, ours=_branch(rule.ours, n)) for rule in (*attention, *mlp))


_OURS, _OFFICIAL = (next(row for row in VIT.schemes if row.name == name) for name in ("vitdense", "official"))
FAMILY = Family(
    (
        *(replace(scheme, rules=_branches(scheme.rules)) for scheme in (_OURS, _OFFICIAL)),
        Scheme("timm", (*TIMM, *(rule for n in BRANCHES for rule in _timm(n)))),
    ),
    markers=(r"blocks\.\d+\.attn1\.qkv\.weight",),
    check=VIT.check,
    may_be_missing=(*VIT.may_be_missing, r".+\.attn\d\.bias\.rel_pos_[hw]", r".+\.attn\d\.qkv\.qv_bias"),
    parts_in_timm=VIT.parts_in_timm,
)
