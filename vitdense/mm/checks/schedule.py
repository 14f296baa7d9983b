"""Schedule: the learning rate follows the length of the run."""

import math
from collections.abc import Iterator, Sequence

from mmengine.config import Config

from vitdense.mm.checks.base import Finding
from vitdense.mm.config.walk import as_list

WARM_UP = ("LinearLR", "ConstantLR")  # schedulers that begin at 0 and may end before the run


def find(cfg: Config, splits: Sequence[str] = ("train",)) -> Iterator[Finding]:
    """A warning where the schedule does not end with the run, or changes after it."""
    if "train" not in splits or not cfg.get("train_cfg"):
        return
    by_epoch = "max_epochs" in cfg.train_cfg
    unit = "max_epochs" if by_epoch else "max_iters"
    length = cfg.train_cfg.get(unit)
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
