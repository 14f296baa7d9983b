"""What the core offers to the folders of `vitdense.extensions`, none of which it names.

A folder says in its ``__init__.py``, as data, what it adds: ``EXTENSION = Extension(...)``. It is found by the folder,
as families are; a module of it is imported when something of it is asked for. Without the folder, all the rest works.
"""

import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Extension:
    """What one folder adds, by names of modules.

    Attributes:
        names: Public names of `vitdense`, and the module that has each.
        commands: Commands, and their line of help. A module of the folder has the name of the command, and `main`.
        options: Commands of the core, or ``load``, and the module with further options of each; see `options_of`.
        registers: Packages, and the module that registers classes with mm where the package is installed.
        kinds: Types of data sets, and the module that knows this kind of labels; see `kind_of`.
        loaders: Steps of pipelines that load labels.
        schemes: Heads with naming schemes of their own, by `family`, and the module that has a `Family` for each in its
            ``HEADS``.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    registers: Mapping[str, str] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    loaders: tuple[str, ...] = ()
    schemes: Mapping[str, str] = field(default_factory=dict)


@cache
def extensions() -> dict[str, Extension]:
    """The extensions that are there, by the names of their modules."""
    root = "vitdense.extensions"
    if not find_spec(root):
        return {}
    names = sorted(f"{root}.{found.name}" for found in pkgutil.iter_modules(import_module(root).__path__))
    return {name: import_module(name).EXTENSION for name in names}


def public_names() -> dict[str, str]:
    """Public names of `vitdense` that extensions have, and the module of each."""
    return {name: module for extension in extensions().values() for name, module in extension.names.items()}


def commands() -> dict[str, tuple[str, str]]:
    """Commands of extensions: the module of each, and its line of help."""
    return {
        name: (f"{module}.{name.replace('-', '_')}", text)
        for module, extension in extensions().items()
        for name, text in extension.commands.items()
    }


def options_of(command: str) -> list[ModuleType]:
    """The modules with further options of a command. Each may have

    - ``add_options(parser)``: adds them;
    - ``change(cfg, args)``: changes the config of a training or a test, after the core's own passes;
    - ``instead(args)``: does the work of the whole command, and returns its exit status; None where it is not asked to;
    - ``after(args, **outcome)``: gets what the command made: a test its ``metrics`` and ``runner``, an export its
      ``program``, ``model`` and ``cfg``, a check its ``cfg``, ``faults`` and ``sets``; of ``load``, which has no
      ``args``, the ``model`` that was loaded and its ``checkpoint``;
    - ``look(dataset, where)``: gets the training data that a check has built, a copy, and yields what is wrong;
    - ``labels(args)``, of the command ``new detection``: a `vitdense.mm.config.own_data.Labels`, or None.
    """
    modules = [extension.options.get(command) for extension in extensions().values()]
    return [import_module(module) for module in modules if module]


def call(command: str, function: str, *args: Any, **outcome: Any) -> None:
    """Call a function of `options_of` in each module that has it."""
    for module in options_of(command):
        if hasattr(module, function):
            getattr(module, function)(*args, **outcome)


def ask(command: str, function: str, *args: Any) -> Any:
    """As `call`, until one returns a result: the result, or None."""
    for module in options_of(command):
        if hasattr(module, function) and (result := getattr(module, function)(*args)) is not None:
            return result
    return None


def registering() -> Iterator[tuple[str, str]]:
    """Modules of extensions that register classes with mm, each after the package that it needs."""
    for extension in extensions().values():
        yield from extension.registers.items()


def kind_of(dataset: type | None) -> ModuleType | None:
    """The module that knows the labels of a class of data sets, by its name or that of a base; None for the core's.

    It has ``Checks``, a subclass of `vitdense.mm.checks.sets.DataSet`.
    """
    known = {kind: module for extension in extensions().values() for kind, module in extension.kinds.items()}
    names = (f"vitdense.{base.__name__}" for base in getattr(dataset, "__mro__", ()))
    found = next((name for name in names if name in known), None)
    return import_module(known[found]) if found else None


def loaders() -> list[str]:
    """Steps of pipelines that load labels which extensions know."""
    return [step for extension in extensions().values() for step in extension.loaders]


def schemes() -> dict[str, str]:
    """Heads of extensions with naming schemes of their own, and the module of each."""
    return {family: module for extension in extensions().values() for family, module in extension.schemes.items()}
