"""What a checkpoint says of its config: its task, the names of its outputs, and differences to another config."""

import ast
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.registry import DATASETS

from vitdense.checkpoint.whole_models import trained_classes
from vitdense.mm.config import query
from vitdense.mm.config.arguments import literal
from vitdense.mm.config.base import ABSENT, find, flat, short
from vitdense.mm.data.classes import meta_of
from vitdense.mm.errors import ConfigError

NAME_OUTPUTS = "name the outputs: --classes a,b,c (in Python classes=['a', 'b', 'c'])"
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


def names_of(
    saved: Mapping[str, Any], cfg: Config, checkpoint: str, classes: Sequence[str] | None, is_known: bool
) -> tuple[Mapping[str, Any], Mapping[str, Any], bool]:
    """mm's `dataset_meta` with the names of a checkpoint's outputs, the checkpoint with names by output, and whether
    these names were given; see `vitdense.mm.predictor.load_model`. `is_known`: whether the model is a published one."""
    if not cfg.get("test_dataloader"):
        raise ConfigError(f"{cfg.filename}: got no test_dataloader, whose pipeline prepares images")
    dataset: Any = next(query.leaf_datasets(cfg.test_dataloader.dataset))
    kind: Any = query.find_class(DATASETS, dataset.type, cfg)
    own = trained_classes(saved)
    found: Any = meta_of(saved) or (kind.METAINFO if is_known else {})
    if classes is not None and (found or own):
        named = list(found["classes"]) if found else [own.get(i, "") for i in range(max(own) + 1)]
        if list(classes) != named:
            got = f"got {list(classes)}, but {checkpoint} names its outputs {named}"
            raise ConfigError(f"classes: {got}; leave them out")
    if not found and (own or classes is not None):
        found = {"classes": tuple(own.values() if own else filter(None, classes or ()))}
        saved = saved if own else {**saved, "args": {"class_names": list(classes or ())}}
    if not found.get("classes"):
        found = next((one for one in (dataset.get("metainfo"), kind.METAINFO) if one and one.get("classes")), {})
        outputs = ", ".join(f"{i} {name}" for i, name in enumerate(found.get("classes") or ()))
        print_log(f"{checkpoint} has no class names; its outputs are taken for the classes of the config: {outputs}")
        return found, saved, False
    if classes is not None or own or query.lacks_classes(cfg):
        for _, head in query.class_heads(cfg.model):
            if "num_classes" in head:
                head["num_classes"] = len(found["classes"])
    return found, saved, True


def log_differences(checkpoint: Mapping, cfg: Config, keys: Collection[str]) -> None:
    """Warn of differences between a config and a checkpoint's. `test_pipeline` is the pipeline of test images."""
    saved = read_saved(checkpoint)
    if saved is None:
        return
    both = saved, cfg.to_dict()
    for config in both:
        data = (config.get("test_dataloader") or {}).get("dataset", {})
        config["test_pipeline"] = next((leaf.get("pipeline") for leaf in query.leaf_datasets(data)), None)
    if lines := differences(*both, keys):
        text = "\n  ".join(lines)
        print_log(f"the config is not that of the checkpoint:\n  {text}", logger="current", level=logging.WARNING)


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
