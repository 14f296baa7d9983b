"""Naming schemes of every family. A module here defines the `Family` of its name: ``swin_v2.SWIN_V2``."""

from importlib import import_module

from vitdense.backbones.variants import FAMILIES as BACKBONES
from vitdense.weights.families.common import Family
from vitdense.weights.rename import Scheme

FAMILIES: dict[str, Family] = {
    name: getattr(import_module(f"{__name__}.{name}"), name.upper()) for name in BACKBONES.values()
}
SCHEMES: dict[str, tuple[Scheme, ...]] = {name: family.schemes for name, family in FAMILIES.items()}
