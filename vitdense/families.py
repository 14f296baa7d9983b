"""The families of backbones, found by their folders: those of `models`, and those of `research` where that is there.

A folder has the classes in ``model.py``; sizes and rows of the table of models in ``sizes.py``; naming schemes of
checkpoints in ``checkpoint.py``. A variant of another family may have the first alone.
"""

import inspect
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

FLOORS = tuple(floor for floor in ("models", "research") if find_spec(f"vitdense.{floor}"))
# Class of a backbone: its folder.
FOLDERS: dict[str, str] = {
    name: f"vitdense.{floor}.{folder}"
    for floor in FLOORS
    for name, folder in import_module(f"vitdense.{floor}").FAMILIES.items()
}


def backbone_class(name: str) -> type:
    """The class of a backbone by its name, such as ``'Swin'``."""
    return getattr(import_module(f"{FOLDERS[name]}.model"), name)


def modules(part: str) -> dict[str, ModuleType]:
    """A module of every folder that has it, ``'sizes'`` or ``'checkpoint'``, by the family: the folder's name."""
    folders = dict.fromkeys(FOLDERS.values())
    found = [folder for folder in folders if find_spec(f"{folder}.{part}")]
    return {folder.rpartition(".")[2]: import_module(f"{folder}.{part}") for folder in found}


def arguments(kind: type) -> dict[str, Any] | None:
    """Arguments of a constructor and their defaults, with those of its bases that it passes ``**options`` on to.

    None if it takes any name: its ``**options`` go elsewhere.
    """
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        if "__init__" in vars(base):
            parameters = inspect.signature(base.__init__).parameters
            found = {name: parameter.default for name, parameter in parameters.items()} | found
            if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters.values()):
                return {name: default for name, default in found.items() if name not in ("self", "args", "options")}
    return None
