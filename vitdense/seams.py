"""The interface between the core and the folders of `vitdense.extensions`. The core names none of them.

A folder declares in its ``__init__.py`` what it adds: ``EXTENSION = Extension(...)``. Its modules are imported on
demand. Everything else works without the folder.
"""

import pkgutil
import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

TOOLS = Path(__file__).parent / ".mim/tools"  # commands that are files, as in a clone


@dataclass(frozen=True)
class Extension:
    """What one folder adds.

    Attributes:
        names: Public name of `vitdense` -> module that has it.
        commands: Command -> group of the help, ``prepare``, ``train`` or ``use``, and line there. The module of the
            same name in the folder has `main`.
        options: Command of the core, ``load`` or ``report`` -> module with further options; see `options_of`.
        registers: Package -> module that registers classes with mm if the package is installed.
        kinds: Type of data set -> module that knows its labels; see `kind_of`.
        loaders: Pipeline steps that load labels.
        schemes: `family` of a head with its own naming schemes -> module with a `Family` for it in ``HEADS``.
        backbones: Class of a backbone in ``model.py`` of the folder -> start of the names of its models, for which
            ``rows.py`` has ``find_row(name)``, the row of the table of models or None.
        ops: Op of mmcv's compiled extension -> module with a function of its name and arguments; see `vitdense.ops`.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    registers: Mapping[str, str] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    loaders: tuple[str, ...] = ()
    schemes: Mapping[str, str] = field(default_factory=dict)
    backbones: Mapping[str, str] = field(default_factory=dict)
    ops: Mapping[str, str] = field(default_factory=dict)


@cache
def extensions() -> dict[str, Extension]:
    """The installed extensions, by the names of their modules."""
    root = "vitdense.extensions"
    if not find_spec(root):
        return {}
    found = pkgutil.iter_modules(import_module(root).__path__)
    names = sorted(f"{root}.{one.name}" for one in found if one.ispkg)
    return {name: import_module(name).EXTENSION for name in names}


def merged(part: str) -> dict[str, Any]:
    """A mapping of `Extension`, such as ``"names"``, of all extensions."""
    return {name: value for extension in extensions().values() for name, value in getattr(extension, part).items()}


def run(command: str, argv: Sequence[str]) -> int:
    """Run a command: a module of `vitdense.mm.cli` or of an extension, or a file of tools/; the exit status."""
    folders = (folder for folder, extension in extensions().items() if command in extension.commands)
    tool = TOOLS / f"{command}.py"
    try:
        if not tool.is_file():
            return import_module(f"{next(folders, 'vitdense.mm.cli')}.{command}").main(argv)
        sys.argv = [f"vitdense {command}", *argv]
        runpy.run_path(str(tool))["main"]()
    except ModuleNotFoundError as error:
        if error.name != "mmengine":
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def options_of(command: str) -> list[ModuleType]:
    """The modules with further options of a command. Each may have

    - ``add_options(parser)``: adds them;
    - ``change(cfg, args)``: changes the config of a training or a test, after the core's own passes;
    - ``instead(args)``: replaces the whole command and returns its exit status, or returns None to leave it alone;
    - ``writer(args, out_dir)``: `write` of `vitdense.mm.cli.predict.predict`, or None;
    - ``before(args, runner)``: looks at the runner of a test before it runs;
    - ``after(args, **outcome)``: gets what the command made: ``metrics`` and ``runner`` of a test; ``program``,
      ``model`` and ``cfg`` of an export; ``cfg``, ``faults`` and ``sets`` of a check; ``model`` and ``checkpoint`` of
      ``load``, which has no ``args``;
    - ``densest(cfg, split, file)`` of a check: most objects of a COCO file that a model sees at once, or None;
    - ``look(dataset, where)``: gets a copy of the training data that a check has built, and yields faults;
    - ``annotations(args)``, for ``new detection``: split -> content of a COCO file and folder of its images, of the
      training alone where ``--val`` is a share of it; or None;
    - ``wrapped(args, data)``, for ``new detection``: a `vitdense.mm.config.own_data.Wrapped`, or None;
    - ``model(cfg, args)``, for ``new``: changes of a recipe's model, or None;
    - ``images(args, cfg, trunk, paths)``, for ``new``: the step that reads the training images, other values of the
      config by dotted keys, and types of steps to leave out; or None;
    - for ``images``, which is no command, ``size(path)``: width and height of a file that Pillow cannot read, or None;
      ``picture(path)``: what a picture shows of it; ``in_windows(step)``: a step that reads an image where it is
      sliced, or None; ``examiner(steps, cfg)``: a pipeline's `vitdense.mm.data.images.read_image_file`, or None;
    - for ``report``, ``shared(...)``: IoUs of oriented boxes;
    - ``labels(args)``, for ``new detection``: a `vitdense.mm.config.own_data.Labels`, or None;
    - for ``export``, ``forms()`` and ``finder(model)``: replacements of modules by their classes, and a
      `vitdense.mm.export.detectors.Finder`, or None; ``check(args, model)`` before it, and
      ``rewrite(args, program, model)``, which changes the file before it is compared.
    """
    modules = [extension.options.get(command) for extension in extensions().values()]
    return [import_module(module) for module in modules if module]


def call(command: str, function: str, *args: Any, **outcome: Any) -> None:
    """Call a function of `options_of` in each module that has it."""
    for module in options_of(command):
        if hasattr(module, function):
            getattr(module, function)(*args, **outcome)


def ask(command: str, function: str, *args: Any) -> Any:
    """The first result that is not None of a function of `options_of`, asked in each module that has it."""
    for module in options_of(command):
        if hasattr(module, function) and (result := getattr(module, function)(*args)) is not None:
            return result
    return None


def registering() -> Iterator[tuple[str, str]]:
    """Modules of extensions that register classes with mm: pairs of the needed package and the module."""
    for extension in extensions().values():
        yield from extension.registers.items()


def kind_of(dataset: type | None) -> ModuleType | None:
    """The extension's module for the labels of a data set class or of a base class; None for data sets of the core.

    The module has ``Checks``, a subclass of `vitdense.mm.checks.sets.DataSet`.
    """
    known = merged("kinds")
    names = (f"vitdense.{base.__name__}" for base in getattr(dataset, "__mro__", ()))
    found = next((name for name in names if name in known), None)
    return import_module(known[found]) if found else None


def loaders() -> list[str]:
    """Pipeline steps of extensions that load labels."""
    return [step for extension in extensions().values() for step in extension.loaders]


def backbones() -> dict[str, tuple[str, str]]:
    """Classes of backbones of extensions: the folder of each, as a module, and the start of its names."""
    return {
        name: (module, start)
        for module, extension in extensions().items()
        for name, start in extension.backbones.items()
    }
