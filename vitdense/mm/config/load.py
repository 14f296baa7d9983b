"""Configs from a file and the command line."""

import argparse
import ast
import difflib
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mmengine.config import Config

import vitdense.mm.registry
from vitdense.files import describe_missing
from vitdense.mm.config.base import Asked, Change
from vitdense.mm.config.passes import completed
from vitdense.mm.config.print import ReadableConfig
from vitdense.mm.config.query import as_list, flat
from vitdense.mm.errors import ConfigError
from vitdense.mm.processes import find_launcher
from vitdense.mm.work_folder import WorkFolder

CONFIGS = (Path(vitdense.__file__).parent / ".mim/configs/configs").resolve()  # the recipes


def load_config(
    path: str | Path,
    options: Mapping[str, Any] | None = None,
    work_dir: str | None = None,
    launcher: str = "none",
    changes: list[Change] | None = None,
) -> Config:
    """Read a config, and make of it what every command takes; see `vitdense.mm.config.passes`.

    Args:
        path: See `find_config`.
        options: ``--cfg-options``: dotted keys and values.
        work_dir: Output folder; default: the work folder whose config it is, the config's, or
            ``work_dirs/<name of the config>``.
        launcher: ``none``, ``pytorch``, ``slurm`` or ``mpi``.
        changes: Gets what each pass changed.

    Raises:
        ConfigError: There is no such file, Python cannot read it, or a pass refuses what is asked.
    """
    cfg = _read(find_config(path))
    if not cfg.get("model"):
        raise ConfigError(f"{cfg.filename}: got no model; expected a config of mmdet or mmseg, with model = dict(...)")
    return completed(cfg, Asked(options or {}, work_dir, launcher), changes)


def shipped(name: str) -> Config:
    """A config that mmdet, mmseg or vitdense ships, as its file has it, for configs that take parts of it; see
    `find_config`."""
    return _read(find_config(name))


def find_config(name: str | Path) -> Path:
    """The path of a config.

    It is a file; a work folder, for the config of its training; ``mmdet::FOLDER/NAME.py`` for one that an installed
    package ships; or the name of one of ours alone, such as ``cascade_swin_t_coco``.

    mmengine's own reader of such names looks for packages by the name of the distribution, which differs for mmseg.

    Raises:
        ConfigError: There is no such file.
    """
    package, _, inside = str(name).rpartition("::")
    spec = find_spec(package) if package else None
    path = Path(spec.origin).parent / ".mim/configs" / inside if spec else Path(name)
    if not spec and not path.suffix and path.name == str(path) and not path.exists():
        path = next(CONFIGS.rglob(f"{path}.py"), path)
    if path.is_dir():
        return WorkFolder(path).config
    if not path.is_file():
        near = difflib.get_close_matches(path.stem, [recipe.stem for recipe in CONFIGS.rglob("*.py")], n=1)
        hint = (
            f"did you mean the recipe {near[0]}?" if near else "expected one, or a name such as mmdet::FOLDER/NAME.py"
        )
        raise ConfigError(f"config {name}: {describe_missing(path)}; {hint}")
    return path


def own_modules(cfg: Config) -> list[Path]:
    """The files and packages beside those of a config that its ``custom_imports`` brought in: they belong to it."""
    folders = {file.parent for file in config_files(Path(cfg.filename))} if cfg.filename else set()
    asked = {name.partition(".")[0] for name in as_list((cfg.get("custom_imports") or {}).get("imports"))}
    beside = {name: path for name in sys.modules if "." not in name and (path := _module_path(name)).parent in folders}
    return sorted(set(beside.values())) if asked & beside.keys() - {"vitdense"} else []


def _module_path(name: str) -> Path:
    """The file of a module that is imported, or the folder of a package."""
    file = Path(getattr(sys.modules[name], "__file__", None) or "/").resolve()
    return file.parent if file.name == "__init__.py" else file


def _check_imports(cfg: Config, files: Sequence[Path]) -> None:
    """Raise if a module beside a config is not the one that this process imported under its name."""
    for name in as_list((cfg.get("custom_imports") or {}).get("imports")):
        top = name.partition(".")[0]
        for folder in {file.parent for file in files}:
            beside, used = folder / f"{top}.py", _module_path(top)
            if beside.is_file() and used.is_file() and beside.read_bytes() != used.read_bytes():
                raise ConfigError(
                    f"custom_imports: got {beside}, but this process has imported {top} from {used}; rename one of them"
                )


def _read(path: Path) -> Config:
    if path.suffix != ".py":  # mmengine's reader of YAML runs code from it
        raise ConfigError(f"config {path}: got {path.suffix or 'no suffix'}, expected .py; write its entries as Python")
    files = config_files(path)
    sys.path += [folder for folder in dict.fromkeys(str(file.parent) for file in files) if folder not in sys.path]
    try:
        cfg = Config.fromfile(path)
    except Exception as error:  # it is a program, which may raise anything
        text = str(error)
        if isinstance(error, TypeError) and "cannot inherit from base" in text and "<class 'list'>" in text:
            # mmengine's advice, `_delete_=True`, would drop all entries of the list but this
            key = text.partition("=")[0]
            raise ConfigError(
                f"{path}: {key} is a list in the base config, got a dict; change every entry: {key}=[dict(entry, ...) "
                f"for entry in _base_....{key}]. The number of classes needs no such line: it follows the data where "
                f"no head states it"
            ) from error
        lines = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) in files]
        where = f"{lines[-1].filename}:{lines[-1].lineno}" if lines else str(path)
        cause = error.__cause__ or error  # of an import
        raise ConfigError(f"{where}: {type(cause).__name__}: {' '.join(str(cause).split())}") from error
    _check_imports(cfg, files)
    return ReadableConfig(cfg._cfg_dict, filename=cfg.filename)


def config_files(path: Path, above: tuple[Path, ...] = ()) -> list[Path]:
    """The file of a config, and those of its bases, each once.

    Args:
        path: The file.
        above: Files that inherit from it.

    Raises:
        ConfigError: A file is no Python, has a byte-order mark, does not exist, or inherits from itself.
    """
    path = path.resolve()
    if path in above:
        raise ConfigError(f"{above[-1]}: _base_ leads back to {path}; a config cannot inherit from itself")
    try:
        text = path.read_bytes().decode("utf-8")
        if text.startswith("\ufeff"):
            raise ConfigError(f"{path}:1: the file begins with a byte-order mark; save it as UTF-8 without BOM")
        tree = ast.parse(text)
    except FileNotFoundError as error:
        raise ConfigError(f"{above[-1]}: a base config is missing ({path}); _base_ is relative to the file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: got bytes that are not UTF-8 ({error}); save it as UTF-8") from error
    except SyntaxError as error:
        raise ConfigError(f"{path}:{error.lineno}: {error.msg}: {(error.text or '').strip()}") from error
    bases = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_base_":
            with suppress(ValueError):  # made by code, as mmengine reads it
                bases = as_list(ast.literal_eval(node.value))
    found = [find_config(base) if "::" in base else path.parent / base for base in bases]
    return list(dict.fromkeys([path, *(file for base in found for file in config_files(base, (*above, path)))]))


def named_files(cfg: Config) -> set[Path]:
    """What a training needs: files of its config, and paths of all texts in it, such as weights, also of a teacher."""
    found = (text for text in flat(cfg._cfg_dict).values() if isinstance(text, str) and "\0" not in text)
    files = config_files(Path(cfg.filename))
    return {Path(os.path.realpath(os.path.expanduser(name))) for name in (*found, *files)}


def config_of(args: argparse.Namespace, changes: list[Change] | None = None) -> Config:
    """Load the config of parsed arguments; `changes`: see `load_config`."""
    run = (args.work_dir, find_launcher(args.launcher)) if "launcher" in args else (None, "none")
    return load_config(args.config, args.cfg_options, *run, changes)
