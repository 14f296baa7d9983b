"""``--cfg-options``: an option changes the key that it names, or is refused."""

import difflib
import inspect
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from mmengine.config import Config
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from vitdense.families import arguments
from vitdense.mm.config.base import REGISTRIES, Asked, find, flat
from vitdense.mm.config.query import SPLITS, find_class, mapped, nodes
from vitdense.mm.config.settings import LENGTHS, SETTINGS, check_kept, check_settings
from vitdense.mm.errors import ConfigError

# What mmengine's runner and this package read at the top level of a config. Anything else is a variable.
TOP_LEVEL = set(arguments(Runner)) - {"cfg", "data_preprocessor"} | {
    *("settings", "data_root", "tta_model", "tta_pipeline", "custom_imports", "launcher"),
    *("find_unused_parameters", "model_wrapper_cfg", "sync_bn", "runner_type", "compile", "activation_checkpointing"),
}
DATALOADER = set(arguments(DataLoader)) | {"num_batch_per_epoch", "disable_subprocess_warning"}
LOOP = {"type", "by_epoch", "val_begin", "val_interval", "dynamic_intervals", "fp16", *LENGTHS}
PLACES = {  # dicts without a type, and their keys
    **{"": TOP_LEVEL, "settings": SETTINGS},
    **{f"{split}_dataloader": DATALOADER for split in SPLITS},
    **{f"{split}_cfg": LOOP for split in SPLITS},
}
# Keys that the builders of mmengine and mmcv take out before they call the constructor of a `type`.
BUILDER_KEYS = {"type", "init_cfg", "priority", "constructor", "paramwise_cfg", "requires_grad"} | {
    *("convert_to_iter_based", "_scope_", "_delete_")
}


def resolve_options(cfg: Config, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options for a config, from the options that a user gave.

    ``train_cfg.max_epochs`` and ``train_cfg.max_iters`` become settings, so that the schedule follows. If test and
    validation have equal data or metrics, options of validation apply to both, except None for the whole of it.
    """
    lengths = {f"train_cfg.{name}": f"settings.{name}" for name in LENGTHS}
    resolved: dict[str, Any] = {}
    for key, value in options.items():
        if (name := lengths.get(key, key)) in resolved:
            raise ConfigError(f"--cfg-options {key}: got {name} too, which sets the same; give one of the two")
        resolved[name] = value
    equal = {f"val_{name}" for name in ("dataloader", "evaluator") if cfg.get(f"val_{name}") == cfg.get(f"test_{name}")}
    of_test = {
        key.replace("val_", "test_", 1): value
        for key, value in options.items()
        if key.partition(".")[0] in equal and ("." in key or value is not None)
    }
    return resolved | {key: value for key, value in of_test.items() if key not in resolved}


def drop_scope(cfg: Config, asked: Asked) -> None:
    """Drop the scope that mmengine adds to all types of a base ``vitdense::...``. Our configs use default_scope."""
    for node in nodes(cfg._cfg_dict):
        if node.get("_scope_") == "vitdense":
            del node["_scope_"]


def merge_settings(cfg: Config, asked: Asked) -> None:
    """Merge the options of ``settings``, before all others."""
    _merge(cfg, asked, settings=True)
    check_settings(cfg)


def merge_given(cfg: Config, asked: Asked) -> None:
    """Merge all other options as given; `cfg.given` records them by dotted keys."""
    given = _merge(cfg, asked, settings=False)
    check_kept(cfg)
    cfg.given.update((key, value) for key, value in flat(given).items() if find(cfg, key) == value)


def move_data(cfg: Config, asked: Asked) -> None:
    """Replace the old ``data_root`` by a new one in the paths of data sets and metrics.

    mmengine would change the variable only, after the paths were made from it.
    """
    new, old = asked.options.get("data_root"), cfg.get("data_root")
    if new is None:
        return
    if not isinstance(new, str):
        raise ConfigError(f"--cfg-options data_root: got {new!r}, expected a path")
    old, new = str(old).rstrip("/"), os.path.expanduser(new).rstrip("/")
    moved = new == old

    def replace(path: Any) -> Any:
        return new + path[len(old) :] if isinstance(path, str) and f"{path}/".startswith(f"{old}/") else path

    for key in (f"{split}_{part}" for split in SPLITS for part in ("dataloader", "evaluator")):
        if cfg.get(key):
            part = mapped(cfg[key], replace)
            moved |= part != cfg[key]
            cfg[key] = part
    if not moved:
        got = f"no path of a data set begins with the data_root {old!r}"
        raise ConfigError(f"--cfg-options data_root: {got}; set the paths, such as train_dataloader.dataset.data_root")


def _merge(cfg: Config, asked: Asked, settings: bool) -> dict[str, Any]:
    given = {key: value for key, value in asked.options.items() if settings == (key.partition(".")[0] == "settings")}
    for key in sorted(given, key=lambda key: not key.endswith(".type")):  # types decide on other keys
        _check_key(cfg, key, given[key])
        cfg.merge_from_dict({key: given[key]})
    return given


def _check_key(cfg: Config, key: str, value: Any) -> None:
    first = key.partition(".")[0]
    if first in cfg and first not in TOP_LEVEL:
        raise ConfigError(
            f"--cfg-options {key}: {first} is a variable of the config file, from which values were computed; set "
            f"these, or change the file; for sizes and lengths there are --image-size, --epochs and --iters"
        )
    node: Any = cfg._cfg_dict
    parts = key.split(".")
    for i, part in enumerate(parts):
        where = ".".join(parts[:i])
        if isinstance(node, (list, tuple)):
            if not part.isdigit() or int(part) >= len(node):
                raise ConfigError(f"--cfg-options {key}: {where} is a list; expected an index of 0 to {len(node) - 1}")
            node = node[int(part)]
        elif not isinstance(node, dict):
            raise ConfigError(f"--cfg-options {key}: {where} is {node!r}, which has no {part}; set {where} itself")
        elif part in node:
            node = node[part]
        else:
            _check_new_key(cfg, key, node, where, part, parts[i + 1 :])
            node = None  # everything below a new key is new
            break
    _check_kind(key, node, value)


def _check_kind(key: str, old: Any, value: Any) -> None:
    """Raise if a value cannot replace the old one. None leaves a part out, such as a hook or a schedule."""
    part = key.rpartition(".")[2]
    if part == "type":
        fits, expected = isinstance(value, (str, type)) and value, "the name of a class"
    elif isinstance(old, Mapping):
        may_be_absent = key != "model" and not part.isdigit()
        fits, expected = isinstance(value, Mapping) or (value is None and may_be_absent), "dict(...)"
    elif part.isdigit():
        fits, expected = False, f"the whole list: {key.rpartition('.')[0]}=[...]"  # mmengine merges only dicts
    elif part in ("data_root", "ann_file"):
        fits, expected = isinstance(value, str) or (value is None and part == "ann_file"), "a path"
    elif isinstance(old, (list, tuple)) and "." in key:
        fits, expected = value is not None and not isinstance(value, Mapping), "[...]"
    else:
        fits, expected = old is None or not isinstance(value, Mapping), "a value"
    if not fits:
        raise ConfigError(f"--cfg-options {key}: got {value!r}, expected {expected}")


def _check_new_key(cfg: Config, key: str, node: dict, where: str, part: str, rest: Sequence[str]) -> None:
    """Raise if a dict of the config cannot have a new key `part`, or if the key looks misspelt."""
    if rest and rest[0].isdecimal():
        hint = "a hook can be added by name, as in default_hooks.my_hook.type=EMAHook"
        raise ConfigError(f"--cfg-options {key}: the config has no list {part}; {hint}")
    allowed = _allowed(cfg, node, where)
    if part in (allowed or ()) or (allowed is None and rest):  # such as custom_keys.norm1.decay_mult
        return
    known = {*node, *(allowed or ()), *(() if where else (f"settings.{name}" for name in SETTINGS))}
    near = difflib.get_close_matches(part, known, n=1, cutoff=0.6 if allowed else 0.8)
    if allowed and not where and not near:
        near = [name for name in flat(cfg._cfg_dict) if name.endswith(f".{part}")]  # such as optim_wrapper.optimizer.lr
    if near or allowed:
        expected = f"one of {', '.join(sorted(set(allowed or ()) - BUILDER_KEYS))}"
        hint = f"did you mean {f'{where}.{near[0]}'.lstrip('.')}?" if near else f"expected {expected}"
        raise ConfigError(f"--cfg-options {key}: {where or 'a config'} has no {part}; {hint}")


def _allowed(cfg: Config, node: dict, where: str) -> Collection[str] | None:
    """The keys that a dict of a config may have; None if it may have any."""
    if where in PLACES:
        return PLACES[where]
    if "type" not in node or where.endswith("init_cfg"):
        return None
    kinds = [kind for kind in (find_class(root, node["type"], cfg) for root in REGISTRIES) if inspect.isclass(kind)]
    names = [arguments(kind) for kind in kinds]
    return set().union(BUILDER_KEYS, *names) if names and None not in names else None
