"""From a config file and what the command line says to a config that is ready to run."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict


class ConfigError(ValueError):
    """A config, data set or option that cannot work; the message says what was looked for and how to mend it."""


def load_config(
    path: str | Path, options: Mapping[str, Any] | None = None, work_dir: str | None = None, launcher: str = "none"
) -> Config:
    """Read a config and apply options.

    A new ``data_root`` moves every path of the config that lay under the old one, the metrics' annotation files
    included; in mmengine alone it would change a variable that nothing reads any more.

    Args:
        path: Config file.
        options: ``--cfg-options``: dotted keys and values.
        work_dir: Folder of the outputs; otherwise the config's, or ``work_dirs/<name of the config>``.
        launcher: ``none``, ``pytorch``, ``slurm`` or ``mpi``.

    Raises:
        ConfigError: There is no such file.
    """
    path = Path(path)
    if not path.is_file():
        near = ", ".join(sorted(p.name for p in path.parent.glob("*.py"))) if path.parent.is_dir() else "no such folder"
        raise ConfigError(f"config {path} is not a file; in {path.parent} there is: {near}")
    cfg = Config.fromfile(path)
    old_root = cfg.get("data_root")
    cfg.merge_from_dict(dict(options or {}))
    new_root = cfg.get("data_root")
    if old_root and new_root != old_root:
        moved = _move(cfg._cfg_dict, old_root.rstrip("/"), os.path.expanduser(new_root).rstrip("/"))
        cfg = Config(moved, filename=cfg.filename)
    cfg.launcher = launcher
    cfg.work_dir = work_dir or cfg.get("work_dir") or str(Path("work_dirs") / path.stem)
    return cfg


def _move(node: Any, old: str, new: str) -> Any:
    """`node` with every path that is or lies under `old` under `new` instead."""
    if isinstance(node, dict):
        return ConfigDict({key: _move(value, old, new) for key, value in node.items()})
    if isinstance(node, (list, tuple)):
        return type(node)(_move(value, old, new) for value in node)
    if isinstance(node, str) and (node == old or node.startswith(old + "/")):
        return new + node[len(old) :]
    return node
