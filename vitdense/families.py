"""The families of backbones, found by their folders: those of `models`, and those of `research` where that is there.

A folder has the classes in ``model.py``; sizes and rows of the table of models in ``sizes.py``; naming schemes of
checkpoints in ``checkpoint.py``. A variant of another family may have the first alone.
"""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

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
