"""Naming schemes of every family. A new family is a module here that defines a `Family`, and a line in `FAMILIES`."""

from vitdense.weights.families.common import CLASSIFIER, OUTPUT_NORMS, PRETRAINING, REBUILT, TOKENS, Family
from vitdense.weights.families.mvit import MVIT
from vitdense.weights.families.swin import SWIN
from vitdense.weights.families.swin_v2 import SWIN_V2
from vitdense.weights.families.vit import VIT
from vitdense.weights.rename import Scheme

FAMILIES: dict[str, Family] = {"swin": SWIN, "swin_v2": SWIN_V2, "mvit": MVIT, "vit": VIT}
SCHEMES: dict[str, tuple[Scheme, ...]] = {name: family.schemes for name, family in FAMILIES.items()}

__all__ = ["CLASSIFIER", "FAMILIES", "OUTPUT_NORMS", "PRETRAINING", "REBUILT", "SCHEMES", "TOKENS", "Family"]
