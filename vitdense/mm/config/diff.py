"""The config in a checkpoint, read as data, and its differences to another config."""

import ast
import logging
from collections.abc import Collection, Mapping
from typing import Any

from mmengine.config import Config
from mmengine.logging import print_log

from vitdense.mm.config.arguments import literal
from vitdense.mm.config.base import ABSENT, find, flat, short
from vitdense.mm.config.query import leaf_datasets
from vitdense.mm.errors import ConfigError

SHOWN = 12  # differences in a message
WEIGHTS = ("init_cfg", "load_from")  # initial weights, which a checkpoint replaces
# Keys that decide how training goes on. Others may differ: the data, for instance, may have moved.
OF_TRAINING = (
    *("train_dataloader.sampler", "train_cfg", "optim_wrapper", "param_scheduler", "custom_hooks", "default_hooks"),
    *("randomness", "auto_scale_lr", "model"),
)
OF_RESULTS = ("model", "test_pipeline")


def read_saved(checkpoint: Mapping) -> dict[str, Any] | None:
    """The config that mmengine saved in a checkpoint; None if there is none, or its text is not Python.

    No code of it runs: an expression other than a dict, list, tuple, text or number stays text.
    """
    text = checkpoint.get("meta", {}).get("cfg")
    if not isinstance(text, str):
        return None
    try:
        assignments = [node for node in ast.parse(text).body if isinstance(node, ast.Assign)]
        return {ast.unparse(name): literal(node.value, _value) for node in assignments for name in node.targets}
    except (SyntaxError, TypeError, ValueError):
        return None


def _value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def check_task(checkpoint: Mapping, cfg: Config, file: str) -> None:
    """Raise a ConfigError for the checkpoint of a detector with the config of a segmentor, or the reverse."""
    saved = read_saved(checkpoint) or {}
    if {saved.get("default_scope"), cfg.get("default_scope")} == {"mmdet", "mmseg"}:
        got, expected = (config["model"]["type"] for config in (saved, cfg))
        raise ConfigError(f"{file}: got weights of a {got}, expected a {expected}, the model of {cfg.filename}")


def log_differences(checkpoint: Mapping, cfg: Config, keys: Collection[str]) -> None:
    """Warn of differences between a config and a checkpoint's. `test_pipeline` is the pipeline of test images."""
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
    lines = []
    for key in keys:
        old, new = (flat(find(config, key), key) for config in (saved, given))
        for name in dict.fromkeys([*old, *new]):
            before, after = old.get(name, ABSENT), new.get(name, ABSENT)
            if before != after and not {*name.split(".")} & {*WEIGHTS}:
                lines.append(f"{name}: {short(after)}, in the checkpoint {short(before)}")
    return [*lines[:SHOWN], f"and {len(lines) - SHOWN} others"] if len(lines) > SHOWN else lines
