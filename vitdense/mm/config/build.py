"""Models built from configs, and the errors of mm's builders in one line."""

import difflib
import re
from collections.abc import Iterator
from contextlib import contextmanager

from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope
from torch import nn

import vitdense.mm.registry  # noqa: F401  registers ours
from vitdense.mm.config.base import flat
from vitdense.mm.config.options import REGISTRIES
from vitdense.mm.errors import ConfigError
from vitdense.mm.guard import guard_model

# Optimizers of further packages, which mmengine registers if they are installed.
PACKAGES = {
    **{"Lion": "lion-pytorch", "Sophia.*": "Sophia-Optimizer"},
    **{"DAdapt.*": "dadaptation", "bnb_.*": "bitsandbytes"},
}


def build_model(cfg: Config) -> nn.Module:
    """Build the model of a config for one process: weights not initialised, BN for SyncBN; see `guard_model`."""
    init_default_scope(cfg.get("default_scope", "mmdet"))
    with explained(cfg):
        return guard_model(revert_sync_batchnorm(MODELS.build(cfg.model)))


@contextmanager
def explained(cfg: Config) -> Iterator[None]:
    """Turn errors of mm's builders, recognised by their text, into a ConfigError with the keys of the config."""
    try:
        yield
    except ValueError as error:
        if str(error) != "base_wd should not be None":
            raise
        raise ConfigError(
            "optim_wrapper.optimizer.weight_decay: got none, but paramwise_cfg has factors of it; set it, such as 0.05"
        ) from error
    except (KeyError, TypeError) as error:
        text = " ".join(str(error.args[0] if error.args else error).split())
        absent = re.match(r"(.+?) is not in the \w+::.+? registry", text)
        found = absent or re.match(r"(\w+)\.__init__\(\) (got an unexpected|got multiple|missing)", text)
        values = flat(cfg.to_dict()).items() if found else ()
        keys = [key.removesuffix(".type") for key, value in values if key.endswith("type") and _same(value, found[1])]
        # The class may be a base of the one that the config names.
        if argument := re.search(r"unexpected keyword argument '(\w+)'", text):
            keys = keys or [key.removesuffix(f".{argument[1]}") for key, _ in values if key.endswith(f".{argument[1]}")]
        if not keys:
            raise
        raise ConfigError(f"{', '.join(keys)}: {unknown_type(found[1], cfg) if absent else text}") from error


def _same(value: object, name: str) -> bool:
    return str(value).rpartition(".")[2] == name.rpartition(".")[2]


def unknown_type(name: str, cfg: Config) -> str:
    """The message for a `type` that no class is registered by, with a near name, or the package that has it."""
    if found := [package for pattern, package in PACKAGES.items() if re.fullmatch(pattern, name)]:
        return f"{name} is not installed; pip install {found[0]}"
    names: set[str] = set()
    for root in REGISTRIES:
        with root.switch_scope_and_registry(cfg.get("default_scope", "mmdet")) as scoped:
            names.update(root.module_dict, scoped.module_dict)
        for scope, child in root.children.items():
            names.update(f"{scope}.{kind}" for kind in child.module_dict)
    near = difflib.get_close_matches(name, sorted(names), n=1)
    hint = f"did you mean {near[0]}?" if near else "a class of one's own is registered by custom_imports"
    return f"no class is registered as {name!r}; {hint}"
