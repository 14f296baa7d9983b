"""The files of a config: where it is, its bases, the modules beside it, and what it names."""

import ast
import difflib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from mmengine.config import Config

import vitdense
from vitdense.families import MODELS
from vitdense.files import describe_missing
from vitdense.mm.config.base import flat
from vitdense.mm.config.query import as_list
from vitdense.mm.errors import ConfigError
from vitdense.mm.work_folder import WorkFolder

CONFIGS = (Path(vitdense.__file__).parent / ".mim/configs/configs").resolve()  # the recipes


def find_config(name: str | Path) -> Path:
    """The path of a config; a ConfigError if there is no such file.

    Args:
        name: A file; a work folder, for the config of its training; ``mmdet::FOLDER/NAME.py`` for one that an installed
            package ships; or the name of one of ours, such as ``cascade_swin_t_coco``.
    """
    # mmengine looks for packages by the name of the distribution, which differs for mmseg.
    package, _, inside = str(name).rpartition("::")
    spec = find_spec(package) if package.isidentifier() else None
    path = Path(spec.origin).parent / ".mim/configs" / inside if spec and spec.origin else Path(name)
    recipes = {recipe.stem: recipe for recipe in sorted(CONFIGS.rglob("*.py"))}
    if not path.exists():
        path = recipes.get(str(path), path)
    if path.is_dir():
        return WorkFolder(path).config
    if path.is_file():
        return path
    names = [name for name, recipe in recipes.items() if recipe.parent.name != "_base_"]
    if str(name) in {row.model for row in MODELS.values()}:
        hint = f"it is the name of a backbone, for vitdense.create({str(name)!r}) in Python"
    elif near := difflib.get_close_matches(path.stem.strip("*"), names, n=1):
        hint = f"did you mean the recipe {near[0]}?"
    else:
        hint = "expected one, or a name such as mmdet::FOLDER/NAME.py"
    raise ConfigError(f"config {name}: {describe_missing(path)}; {hint}")


def config_files(path: Path, above: tuple[Path, ...] = ()) -> list[Path]:
    """The files of a config and its bases, without duplicates; `above` are files that inherit from it."""
    path = path.resolve()
    if path in above:
        raise ConfigError(f"{above[-1]}: _base_ leads back to {path}; a config cannot inherit from itself")
    if not path.is_file():
        raise ConfigError(f"{above[-1]}: a base config is missing ({path}); _base_ is relative to the file")
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError as error:
        raise ConfigError(f"{path}:{error.lineno}: {error.msg}: {(error.text or '').strip()}") from error
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.Dict)):
        keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise ConfigError(f"{path}:{node.lineno}: got the key {twice[0]!r} twice in a dict; leave one out")
    bases = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_base_":
            with suppress(ValueError):  # an expression, which mmengine evaluates
                bases = as_list(ast.literal_eval(node.value))
    found = [find_config(base) if "::" in base else path.parent / base for base in bases]
    return list(dict.fromkeys([path, *(file for base in found for file in config_files(base, (*above, path)))]))


def named_files(cfg: Config) -> set[Path]:
    """Files that a training needs: of its config, and all paths in it, such as weights, also a teacher's."""
    found = (text for text in flat(cfg._cfg_dict).values() if isinstance(text, str) and "\0" not in text)
    files = config_files(Path(cfg.filename))
    return {Path(os.path.realpath(os.path.expanduser(name))) for name in (*found, *files)}


def own_modules(cfg: Config) -> list[Path]:
    """The modules of ``custom_imports`` that lie beside a config or its bases, and so belong to it."""
    folders = {file.parent for file in config_files(Path(cfg.filename))} if cfg.filename else set()
    beside = {name: path for name in sys.modules if "." not in name and (path := _module_path(name)).parent in folders}
    return sorted(set(beside.values())) if _imported(cfg) & beside.keys() - {"vitdense"} else []


def _imported(cfg: Config) -> set[str]:
    return {name.partition(".")[0] for name in as_list((cfg.get("custom_imports") or {}).get("imports"))}


def _module_path(name: str) -> Path:
    file = Path(getattr(sys.modules[name], "__file__", None) or "/").resolve()
    return file.parent if file.name == "__init__.py" else file


def check_imports(cfg: Config, files: Sequence[Path]) -> None:
    """Raise if a module beside a config is not the one that this process imported under its name."""
    for top in _imported(cfg):
        for folder in {file.parent for file in files}:
            beside, used = folder / f"{top}.py", _module_path(top)
            if beside.is_file() and used.is_file() and beside.read_bytes() != used.read_bytes():
                raise ConfigError(
                    f"custom_imports: got {beside}, but this process has imported {top} from {used}; rename one of them"
                )
