"""Naming schemes of every family: `FAMILY` of the ``checkpoint.py`` in its folder, and `HEADS` where there are any."""

from vitdense.checkpoint.family import Family
from vitdense.checkpoint.rename import Scheme
from vitdense.families import modules

_MODULES = modules("checkpoint")
FAMILIES: dict[str, Family] = {name: module.FAMILY for name, module in _MODULES.items()}
for _module in _MODULES.values():
    FAMILIES |= getattr(_module, "HEADS", {})
SCHEMES: dict[str, tuple[Scheme, ...]] = {name: family.schemes for name, family in FAMILIES.items()}
