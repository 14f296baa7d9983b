"""A config by dotted keys, the passes that change it, and what mm builds from it."""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, NamedTuple

from mmengine import registry as registries
from mmengine.config import Config
from mmengine.evaluator import Evaluator
from mmengine.model import revert_sync_batchnorm
from mmengine.runner import Runner
from torch import nn
from torch.utils.data import DataLoader

import vitdense.mm.registry  # noqa: F401  registers ours
from vitdense.mm.config.asked import Asked
from vitdense.mm.config.classes import BY_NAME
from vitdense.mm.config.print import code
from vitdense.mm.config.query import as_list
from vitdense.mm.errors import ConfigError
from vitdense.mm.guard import guard_model

# Options of data loaders for worker processes; torch refuses most of them without workers.
OF_WORKERS = ("persistent_workers", "prefetch_factor", "multiprocessing_context", "timeout", "pin_memory_device")
ABSENT = "absent"
SHOWN = 60  # characters of a value
# mmengine's root registries for a `type` in configs: mm warns of each that mmdet or mmseg do not have.
REGISTRIES = (
    *(registries.MODELS, registries.DATASETS, registries.TRANSFORMS, registries.DATA_SAMPLERS, registries.HOOKS),
    *(registries.OPTIMIZERS, registries.OPTIM_WRAPPERS, registries.PARAM_SCHEDULERS, registries.METRICS),
    *(registries.VISUALIZERS, registries.VISBACKENDS, registries.TASK_UTILS, registries.LOG_PROCESSORS),
)
# Optimizers of further packages, which mmengine registers if they are installed.
PACKAGES = {
    **{"Lion": "lion-pytorch", "Sophia.*": "Sophia-Optimizer"},
    **{"DAdapt.*": "dadaptation", "bnb_.*": "bitsandbytes"},
}


def has_parts(node: Any) -> bool:
    """Whether a part of a config is a dict or list that is not empty."""
    return bool(node) and isinstance(node, (dict, list, tuple))


def has_dicts(node: Any) -> bool:
    return has_parts(node) and (isinstance(node, dict) or any(isinstance(part, dict) for part in node))


def flat(node: Any, key: str = "", opens: Callable[[Any], bool] = has_parts) -> dict[str, Any]:
    """The values in a part of a config by dotted keys that begin with `key`; `opens` says which nodes to go into."""
    if not opens(node):
        return {key: node}
    parts = node.items() if isinstance(node, dict) else enumerate(node)
    return {
        name: value
        for part, inner in parts
        for name, value in flat(inner, f"{key}.{part}" if key else part, opens).items()
    }


def find(node: Any, key: str) -> Any:
    """The value at a dotted key, or `ABSENT`."""
    for part in key.split("."):
        if isinstance(node, (list, tuple)):
            node = node[int(part)] if part.isdigit() and int(part) < len(node) else ABSENT
        else:
            node = node.get(part, ABSENT) if isinstance(node, (Config, Mapping)) else ABSENT
    return node


class Pass(NamedTuple):
    """One writer of a config: `apply` changes it in place."""

    name: str  # its option or setting, or what it does
    apply: Callable[[Config, Asked], None]


class Change(NamedTuple):
    """A key that a pass changed, with its old and new value; `ABSENT` for a missing key."""

    by: str
    key: str
    old: Any
    new: Any


def run_passes(passes: Sequence[Pass], cfg: Config, asked: Asked, changes: list[Change] | None = None) -> None:
    """Change a config in place, pass by pass, else a ConfigError; `changes` gets what each changed."""
    before = flat(cfg.to_dict(), opens=has_dicts) if changes is not None else {}
    for step in passes:
        step.apply(cfg, asked)
        if changes is not None:
            after = flat(cfg.to_dict(), opens=has_dicts)
            pairs = ((key, before.get(key, ABSENT), after.get(key, ABSENT)) for key in {**before, **after})
            changes += [Change(step.name, *pair) for pair in pairs if repr(pair[1]) != repr(pair[2])]
            before = after
        for key, value in getattr(cfg, "given", {}).items():
            now = find(cfg, key)
            if now not in (value, ABSENT if value is None else value, *BY_NAME.values()):  # the same type, read by name
                done = "leaves it out" if now is ABSENT else f"sets it to {now!r}"
                raise ConfigError(f"--cfg-options {key}: got {value!r}, but {step.name} {done}; give one of the two")


def describe(changes: Sequence[Change]) -> Iterator[str]:
    """Lines of text: the name of each pass that changed something, and its changes ``key: old -> new``."""
    for name, group in groupby(changes, lambda change: change.by):
        yield name
        yield from (f"    {key}: {short(old)} -> {short(new)}" for _, key, old, new in group)


def short(value: Any) -> str:
    text = value if value is ABSENT else " ".join(code(value).split())
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def build_model(cfg: Config) -> nn.Module:
    """Build the model of a config for one process: weights not initialised, BN for SyncBN; see `guard_model`."""
    registries.init_default_scope(cfg.get("default_scope", "mmdet"))
    with explained(cfg):
        return guard_model(revert_sync_batchnorm(registries.MODELS.build(cfg.model)))


def build_loader(cfg: Config, split: str) -> DataLoader:
    """Build the data loader of ``train``, ``val`` or ``test`` without workers."""
    given = {key: value for key, value in cfg[f"{split}_dataloader"].items() if key not in OF_WORKERS}
    registries.init_default_scope(cfg.get("default_scope", "mmdet"))
    with explained(cfg):
        return Runner.build_dataloader({**given, "num_workers": 0}, seed=0)


def build_evaluator(cfg: Config, data: DataLoader) -> Evaluator:
    """Build the metrics of the validation, for the classes of a loader's data."""
    with explained(cfg):
        evaluator = Evaluator(as_list(cfg.val_evaluator))
    evaluator.dataset_meta = data.dataset.metainfo
    return evaluator


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
        of = found and found[1].rpartition(".")[2]
        keys = [key.removesuffix(".type") for key, x in values if key.endswith("type") and str(x).split(".")[-1] == of]
        # The class may be a base of the one that the config names.
        if argument := re.search(r"unexpected keyword argument '(\w+)'", text):
            keys = keys or [key.removesuffix(f".{argument[1]}") for key, _ in values if key.endswith(f".{argument[1]}")]
        if not keys:
            raise
        raise ConfigError(f"{', '.join(keys)}: {unknown_type(found[1], cfg) if absent else text}") from error


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
