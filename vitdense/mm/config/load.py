"""Configs from a file and the command line."""

import argparse
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmengine.config import Config

import vitdense.mm.registry  # noqa: F401  registers ours
from vitdense.mm.config.base import Asked, Change
from vitdense.mm.config.files import check_imports, config_files, find_config
from vitdense.mm.config.passes import completed
from vitdense.mm.config.print import ReadableConfig
from vitdense.mm.errors import ConfigError
from vitdense.mm.processes import find_launcher


def load_config(
    path: str | Path,
    options: Mapping[str, Any] | None = None,
    work_dir: str | None = None,
    launcher: str = "none",
    changes: list[Change] | None = None,
) -> Config:
    """Read a config and complete it for any command, else a ConfigError; see `vitdense.mm.config.passes`.

    Args:
        path: See `find_config`.
        options, work_dir, launcher: See `Asked`.
        changes: Gets what each pass changed.
    """
    cfg = _read(find_config(path))
    if not cfg.get("model"):
        raise ConfigError(f"{cfg.filename}: got no model; expected a config of mmdet or mmseg, with model = dict(...)")
    return completed(cfg, Asked(options or {}, work_dir, launcher), changes)


def shipped(name: str) -> Config:
    """A config that mmdet, mmseg or vitdense ships, as in its file, for configs that take parts of it."""
    return _read(find_config(name))


def _read(path: Path) -> Config:
    if path.suffix != ".py":  # mmengine's reader of YAML runs code from it
        raise ConfigError(
            f"config {path}: got {path.suffix or 'no suffix'}, expected a config, .py; vitdense new writes one for data"
        )
    files = config_files(path)
    sys.path += [folder for folder in dict.fromkeys(str(file.parent) for file in files) if folder not in sys.path]
    try:
        cfg = Config.fromfile(path)
    except Exception as error:  # a config is a program and may raise anything
        lines = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) in files]
        where = f"{lines[-1].filename}:{lines[-1].lineno}" if lines else str(path)
        cause = error.__cause__ or error  # a failed import has the cause
        text = f"{type(cause).__name__}: {' '.join(str(cause).split())}"
        if "cannot inherit from base" in text and "<class 'list'>" in text:
            # mmengine's advice, `_delete_=True`, would drop all entries of the list but this
            key = str(error).partition("=")[0]
            text = f"{key} is a list in the base config, got a dict; change every entry: {key}=[dict(one, ...) for one "
            text += f"in _base_....{key}]; the number of classes needs no line: it follows the data"
        raise ConfigError(f"{where}: {text}") from error
    check_imports(cfg, files)
    return ReadableConfig(cfg._cfg_dict, filename=cfg.filename)


def config_of(args: argparse.Namespace, changes: list[Change] | None = None) -> Config:
    return load_config(args.config, **options_of(args), changes=changes)


def options_of(args: argparse.Namespace) -> dict[str, Any]:
    """The options of `load_config` in the parsed arguments of a tool."""
    run = {"work_dir": args.work_dir, "launcher": find_launcher(args.launcher)} if "launcher" in args else {}
    return {"options": args.cfg_options, **run}
