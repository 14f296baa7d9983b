"""Naming schemes of every family: `FAMILY` of the ``checkpoint.py`` in its folder."""

from vitdense.checkpoint.family import Family
from vitdense.checkpoint.rename import Scheme
from vitdense.families import modules

FAMILIES: dict[str, Family] = {name: module.FAMILY for name, module in modules("checkpoint").items()}
SCHEMES: dict[str, tuple[Scheme, ...]] = {name: family.schemes for name, family in FAMILIES.items()}
