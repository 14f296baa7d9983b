"""Backbones for dense prediction: plain torch modules, one file per family."""

from importlib import import_module
from typing import Any

from vitdense.backbones.variants import FAMILIES

# Imported on first use: `vitdense.weights` needs the sizes of `vitdense.backbones.variants`, and backbones need
# weights.
_LAZY = {"Backbone": "base", **FAMILIES}
__all__ = [*_LAZY]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'vitdense.backbones' has no attribute {name!r}")
    return getattr(import_module(f"vitdense.backbones.{_LAZY[name]}"), name)
