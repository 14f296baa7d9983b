"""Models built from configs, and the errors of mm's builders in one line."""

import difflib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, Registry, init_default_scope
from torch import nn

import vitdense.mm.registry  # noqa: F401  registers ours
from vitdense.mm.config.base import flat
from vitdense.mm.config.options import REGISTRIES
from vitdense.mm.errors import ConfigError
from vitdense.mm.guard import guard_model


def build_model(cfg: Config) -> nn.Module:
    """Build the model of a config for one process: weights not initialised, BN for SyncBN; see `guard_model`."""
    init_default_scope(cfg.get("default_scope", "mmdet"))
    with explained(cfg):
        return guard_model(revert_sync_batchnorm(MODELS.build(cfg.model)))


@contextmanager
def explained(cfg: Config) -> Iterator[None]:
    """Errors of mm's builders, which are known by their texts, as one line with the keys of the config.

    Raises:
        ConfigError: No class has the name of a `type`, or it does not take its arguments.
    """
    try:
        yield
    except (KeyError, TypeError) as error:
        text = " ".join(str(error.args[0] if error.args else error).split())
        absent = re.match(r"(\S+) is not in the \w+::.+? registry", text)
        found = absent or re.match(r"(\w+)\.__init__\(\) (got an unexpected|got multiple|missing)", text)
        named = flat(cfg.to_dict()).items() if found else ()
        keys = [key for key, value in named if key.endswith("type") and _last(value) == _last(found[1])]
        if not keys:
            raise
        where = ", ".join(key.rpartition(".type")[0] or key for key in keys)
        raise (unknown_type(where, found[1], cfg) if absent else ConfigError(f"{where}: {text}")) from error


def _last(name: object) -> str:
    return str(name).rpartition(".")[2]


def unknown_type(where: str, name: str, cfg: Config, roots: Sequence[Registry] = REGISTRIES) -> ConfigError:
    """The error that no class has the name of a `type`, with the nearest name of the registries `roots`."""
    names: set[str] = set()
    for root in roots:
        with root.switch_scope_and_registry(cfg.get("default_scope", "mmdet")) as scoped:
            names.update(root.module_dict, scoped.module_dict)
        for scope, child in root.children.items():
            names.update(f"{scope}.{kind}" for kind in child.module_dict)
    near = difflib.get_close_matches(str(name), sorted(names), n=1)
    hint = f"did you mean {near[0]}?" if near else "a class of one's own is registered by custom_imports"
    return ConfigError(f"{where}: no class is registered as {name!r}; {hint}")
