"""Another ``data_root``."""

import os
from typing import Any

from mmengine.config import Config, ConfigDict

from vitdense.mm.config.base import Asked
from vitdense.mm.config.query import SPLITS
from vitdense.mm.errors import ConfigError


def move_data(cfg: Config, asked: Asked) -> None:
    """A new ``data_root`` takes the place of the old one in the paths of data sets and metrics. mmengine would change
    the variable alone, after all paths were made from it.

    Raises:
        ConfigError: No path begins with the old one, or the new one is no path.
    """
    new, old = asked.options.get("data_root"), cfg.get("data_root")
    if new is None:
        return
    if not isinstance(new, str):
        raise ConfigError(f"--cfg-options data_root: got {new!r}, expected a path")
    old, new = str(old).rstrip("/"), os.path.expanduser(new).rstrip("/")
    moved = new == old
    for key in (f"{split}_{part}" for split in SPLITS for part in ("dataloader", "evaluator")):
        if cfg.get(key):
            part = _replace_root(cfg[key], old, new)
            moved |= part != cfg[key]
            cfg[key] = part
    if not moved:
        raise ConfigError(
            f"--cfg-options data_root: no path of a data set begins with the data_root {old!r}; set the paths "
            f"themselves, such as train_dataloader.dataset.data_root"
        )


def _replace_root(node: Any, old: str, new: str) -> Any:
    """`node` with the folder `old` replaced by `new` in every path."""
    if isinstance(node, dict):
        return ConfigDict({key: _replace_root(value, old, new) for key, value in node.items()})
    if isinstance(node, (list, tuple)):
        return type(node)(_replace_root(value, old, new) for value in node)
    if isinstance(node, str) and (node == old or node.startswith(old + "/")):
        return new + node[len(old) :]
    return node
