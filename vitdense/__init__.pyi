# For type checkers: the package itself imports these when they are first used.
from typing import Any

from vitdense.hub import create as create
from vitdense.hub import list_models as list_models
from vitdense.mm.predictor import load as load

__version__: str
__all__: list[str]

def __getattr__(name: str) -> Any: ...
