"""The config in a checkpoint, read as data, and its differences to another config."""

import ast
import logging
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from mmengine.config import Config
from mmengine.logging import print_log

from vitdense.mm.config.base import ABSENT, find, short
from vitdense.mm.config.query import leaf_datasets

SHOWN = 12  # differences in a message
WEIGHTS = ("init_cfg", "load_from")  # what a model starts with is in the checkpoint
# Of a run, what decides how training goes on; the data, for instance, may have moved.
OF_TRAINING = (
    *("train_dataloader.sampler", "train_cfg", "optim_wrapper", "param_scheduler", "custom_hooks", "default_hooks"),
    *("randomness", "auto_scale_lr", "model"),
)
OF_RESULTS = ("model", "test_pipeline")


def read_saved(checkpoint: Mapping) -> dict[str, Any] | None:
    """The config that mmengine saved in a checkpoint; None if there is none, or its text is no Python.

    None of its code runs: an expression other than a dict, list, tuple, text or number stays text.
    """
    text = checkpoint.get("meta", {}).get("cfg")
    if not isinstance(text, str):
        return None
    try:
        statements = ast.parse(text).body
    except SyntaxError:
        return None
    assignments = [node for node in statements if isinstance(node, ast.Assign)]
    return {ast.unparse(target): _value(node.value) for node in assignments for target in node.targets}


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        # mmengine writes dict(a=1), or dict({'a.b': 1}) for keys that are no names.
        of_names = {word.arg: _value(word.value) for word in node.keywords}
        return _value(node.args[0]) if node.args else of_names
    if isinstance(node, ast.Dict):
        return {_value(key): _value(value) for key, value in zip(node.keys, node.values)}
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(item) for item in node.elts]
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def log_differences(checkpoint: Mapping, cfg: Config, keys: Collection[str]) -> None:
    """Warn of differences between a config and that of a checkpoint. `test_pipeline` is the pipeline of test images."""
    saved = read_saved(checkpoint)
    if saved is None:
        return
    saved, given = ({**config, "test_pipeline": _test_pipeline(config)} for config in (saved, cfg.to_dict()))
    if lines := differences(saved, given, keys):
        text = "\n  ".join(lines)
        print_log(f"the config is not that of the checkpoint:\n  {text}", logger="current", level=logging.WARNING)


def _test_pipeline(config: Mapping) -> Any:
    data = config.get("test_dataloader") or {}
    return next((dataset.get("pipeline") for dataset in leaf_datasets(data.get("dataset", {}))), None)


def differences(saved: Mapping, given: Mapping, keys: Collection[str]) -> list[str]:
    """The differences under dotted keys, a line each: ``model.neck.out_channels: 256, in the checkpoint 128``."""
    lines = [line for key in keys for line in _lines(key, find(saved, key), find(given, key))]
    return [*lines[:SHOWN], f"and {len(lines) - SHOWN} others"] if len(lines) > SHOWN else lines


def _lines(key: str, saved: Any, given: Any) -> Iterator[str]:
    if isinstance(saved, Mapping) and isinstance(given, Mapping):
        for name in dict.fromkeys([*saved, *given]):
            if name not in WEIGHTS:
                yield from _lines(f"{key}.{name}", saved.get(name, ABSENT), given.get(name, ABSENT))
        return
    saved, given = (list(x) if isinstance(x, (list, tuple)) else x for x in (saved, given))
    if isinstance(saved, list) and isinstance(given, list) and len(saved) == len(given):
        for i, pair in enumerate(zip(saved, given)):
            yield from _lines(f"{key}.{i}", *pair)
    elif saved != given:
        yield f"{key}: {short(given)}, in the checkpoint {short(saved)}"
