"""Schedule: the learning rate follows the length of the run, and what has a time is reached."""

import math
from collections.abc import Iterator, Sequence

from mmengine.config import Config

from vitdense.mm.checks.base import Finding
from vitdense.mm.config.query import as_list, hooks
from vitdense.mm.errors import ConfigError

WARM_UP = ("LinearLR", "ConstantLR")  # schedulers that begin at 0 and may end before the run


def find(cfg: Config, splits: Sequence[str] = ("train",)) -> Iterator[Finding]:
    """A warning where the schedule does not end with the run, or changes after it; errors for what is never reached."""
    if "train" not in splits or not cfg.get("train_cfg"):
        return
    by_epoch = "max_epochs" in cfg.train_cfg
    unit = "max_epochs" if by_epoch else "max_iters"
    length = cfg.train_cfg.get(unit)
    yield from _never_reached(cfg, unit, length)
    schedulers = [step for step in as_list(cfg.get("param_scheduler")) if step.get("by_epoch", True) == by_epoch]
    ends = [
        step["end"]
        for step in schedulers
        if step.get("end") is not None
        and not (step["type"] in WARM_UP and step.get("begin", 0) == 0 and step["end"] <= length)
    ]
    starts = [start for step in schedulers for start in (step.get("begin", 0), *step.get("milestones", ()))]
    if ends and max(ends) != length:
        fault = f"ends at {max(ends)}"
    elif late := [start for start in starts if start >= length]:
        fault = f"changes at {', '.join(f'{start:g}' for start in late)}, which is never reached"
    else:
        return
    yield (
        f"param_scheduler {fault}, but train_cfg.{unit} is {length}; set settings = dict({unit}={length}) in place of "
        f"train_cfg.{unit}, and the schedule follows"
    )


def _never_reached(cfg: Config, unit: str, length: int) -> Iterator[Finding]:
    times = [] if cfg.get("val_cfg") is None else [("train_cfg.val_begin", cfg.train_cfg.get("val_begin"))]
    times += [("train_cfg.dynamic_intervals", time) for time, _ in cfg.train_cfg.get("dynamic_intervals") or ()]
    keys = ("switch_epoch", "begin_epoch", "num_last_epochs") if unit == "max_epochs" else ("begin_iter", "starts")
    times += [(f"{where}.{key}", hook[key]) for where, hook in hooks(cfg) for key in keys if hook.get(key)]
    for key, time in times:
        first = max(as_list(time), default=0)
        if first > length or (first == length and key != "train_cfg.val_begin"):
            text = f"{key}: got {time}, which a run of train_cfg.{unit}={length} never reaches"
            given = any(f"{name}.".startswith(f"{key}.") for name in getattr(cfg, "given", ()))
            is_asked = given or unit in cfg.get("settings", {})
            yield ConfigError(text) if is_asked else text  # mm's own configs leave a validation out by it
    if unit == "max_iters":
        saves = (cfg.get("default_hooks") or {}).get("checkpoint")
        of_epochs = ["default_hooks.checkpoint"] if saves and saves.get("by_epoch", True) else []
        for i, step in enumerate(as_list(cfg.get("param_scheduler"))):
            if step.get("by_epoch", True) and "ReduceOnPlateau" not in str(
                step.get("type")
            ):  # which follows validations
                of_epochs.append(f"param_scheduler.{i}")
        for where in of_epochs:
            yield ConfigError(f"{where}.by_epoch: got True, but the run counts iterations; set {where}.by_epoch=False")


def warm_up_warnings(cfg: Config, num_images: int) -> Iterator[str]:
    """A line for every warm-up in iterations that is longer than half of a run of epochs over so many images."""
    epochs = (cfg.get("train_cfg") or {}).get("max_epochs")
    if not epochs or not num_images:
        return
    steps = epochs * math.ceil(num_images / cfg.train_dataloader.get("batch_size", 1))
    for i, step in enumerate(as_list(cfg.get("param_scheduler"))):
        if not step.get("by_epoch", True) and step.get("end", 0) > steps // 2:
            yield (
                f"the warm-up, param_scheduler.{i}, takes {step['end']} iterations, but the whole run has {steps} "
                f"on one GPU; train for more epochs, or warm up for a tenth of it: --cfg-options "
                f"param_scheduler.{i}.end={max(steps // 10, 2)}"
            )
