"""Checks of the schedule: it fits the length of the run, all times are reached, monitored metrics exist."""

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence

from mmengine.config import Config
from mmengine.hooks import EarlyStoppingHook

from vitdense.mm.checks.config import values
from vitdense.mm.config.query import as_list, hooks
from vitdense.mm.config.settings import LENGTHS
from vitdense.mm.data.faults import Fault

WARM_UP = ("LinearLR", "ConstantLR")  # schedulers that begin at 0 and may end before the run
OWN_LOOPS = (None, "EpochBasedTrainLoop", "IterBasedTrainLoop")  # mmengine's
OF_VALIDATION = ("EarlyStoppingHook", "ReduceOnPlateauLR", "ReduceOnPlateauMomentum")
COCO = ("mAP", "mAP_50", "mAP_75", "mAP_s", "mAP_m", "mAP_l")
OF_IOU = {
    "mIoU": ("aAcc", "mIoU", "mAcc"),
    "mDice": ("aAcc", "mDice", "mAcc"),
    "mFscore": ("aAcc", "mFscore", "mPrecision", "mRecall"),
}
PANOPTIC = [name + end for end in ("", "_th", "_st") for name in ("PQ", "SQ", "RQ")]
# Parts of metric names whose direction mmengine knows, and options that state the direction of others.
DIRECTED = [key.lower() for key in EarlyStoppingHook._default_greater_keys + EarlyStoppingHook._default_less_keys]
STATED = {"rule", "greater_keys", "less_keys"}


def schedule(cfg: Config, splits: Sequence[str] = ("train",)) -> Iterator[Fault]:
    """The schedule ends with the run, and all times are within it."""
    if "train" not in splits or not cfg.get("train_cfg"):
        return
    unit = next((unit for unit in LENGTHS if cfg.train_cfg.get(unit)), None)
    if unit is None and cfg.train_cfg.get("type") in OWN_LOOPS:
        yield Fault(f"got none of {', '.join(LENGTHS)}, expected one of them", "train_cfg")
    if unit is None or any(values(cfg, splits)):  # a user's own loop, or invalid numbers
        return
    by_epoch, length = unit == "max_epochs", cfg.train_cfg[unit]
    yield from _never_reached(cfg, unit, length)
    schedulers = [step for step in as_list(cfg.get("param_scheduler")) if step.get("by_epoch", True) == by_epoch]
    ends = [step.get("end") for step in schedulers if not (step["type"] in WARM_UP and step.get("begin", 0) == 0)]
    ends += [step["end"] for step in schedulers if step.get("end") is not None and step["end"] > length]
    last = max((end for end in ends if end is not None), default=length)
    starts = [start for step in schedulers for start in (step.get("begin", 0), *step.get("milestones", ()))]
    if last != length:
        fault = f"ends at {last}"
    elif late := [start for start in starts if start >= length]:
        fault = f"changes at {', '.join(f'{start:g}' for start in late)}, which is never reached"
    else:
        return
    fix = f"set settings = dict({unit}={length}) in place of train_cfg.{unit}, and the schedule follows"
    yield Fault(f"param_scheduler {fault}, but train_cfg.{unit} is {length}", fix=fix, grave=False)


def _never_reached(cfg: Config, unit: str, length: int) -> Iterator[Fault]:
    times = [] if cfg.get("val_cfg") is None else [("train_cfg.val_begin", cfg.train_cfg.get("val_begin"))]
    times += [("train_cfg.dynamic_intervals", time) for time, _ in cfg.train_cfg.get("dynamic_intervals") or ()]
    keys = ("switch_epoch", "begin_epoch", "num_last_epochs") if unit == "max_epochs" else ("begin_iter", "starts")
    times += [(f"{where}.{key}", hook[key]) for where, hook in hooks(cfg) for key in keys if hook.get(key)]
    for key, time in times:
        first = max(as_list(time), default=0)
        if first > length or (first == length and key != "train_cfg.val_begin"):
            given = any(f"{name}.".startswith(f"{key}.") for name in getattr(cfg, "given", ()))
            is_asked = given or unit in cfg.get("settings", {})  # mm's own configs do so to leave out a validation
            yield Fault(f"got {time}, which a run of train_cfg.{unit}={length} never reaches", key, grave=is_asked)
    if unit == "max_iters":
        saves = (cfg.get("default_hooks") or {}).get("checkpoint")
        of_epochs = ["default_hooks.checkpoint"] if saves and saves.get("by_epoch", True) else []
        for i, step in enumerate(as_list(cfg.get("param_scheduler"))):
            if step.get("by_epoch", True) and "ReduceOnPlateau" not in str(step.get("type")):  # these count validations
                of_epochs.append(f"param_scheduler.{i}")
        for where in of_epochs:
            key = f"{where}.by_epoch"
            yield Fault("got True, but the run counts iterations", key, fix=f"set {key}=False")


def warm_up(cfg: Config, num_images: int) -> Iterator[Fault]:
    """A warm-up in iterations is at most half of a run of epochs over `num_images`. The values passed the checks."""
    epochs = (cfg.get("train_cfg") or {}).get("max_epochs")
    if not epochs or not num_images:
        return
    steps = epochs * math.ceil(num_images / cfg.train_dataloader.get("batch_size", 1))
    for i, step in enumerate(as_list(cfg.get("param_scheduler"))):
        if not step.get("by_epoch", True) and step.get("end", 0) > steps // 2:
            what = f"the warm-up takes {step['end']} iterations, but the whole run has {steps} on one GPU"
            option = f"--cfg-options param_scheduler.{i}.end={max(steps // 10, 2)}"
            fix = f"train for more epochs, or warm up for a tenth of it: {option}"
            yield Fault(what, f"param_scheduler.{i}", fix=fix, grave=False)


def monitors(cfg: Config, splits: Sequence[str]) -> Iterator[Fault]:
    """Hooks that depend on a metric have a validation, a metric of that name, and a direction.

    Checked for metrics with known names: mmdet's for COCO, and mmseg's IoU.
    """
    if "train" not in splits:
        return
    for _, hook in hooks(cfg):
        if "EarlyStoppingHook" in str(hook["type"]) and "min_delta" not in hook:
            unit = f"in the unit of {hook.get('monitor')}: 0.001 of an AP from 0 to 1, 0.1 of an mIoU in per cent"
            what, where = "not set, and mmengine's 0.1 is ten points of an AP", f"min_delta of {hook['type']}"
            yield Fault(what, where, fix=f"set the smallest gain that counts, {unit}")
    if all(cfg.get(f"val_{part}") is None for part in ("cfg", "dataloader", "evaluator")):
        schedulers = [(f"param_scheduler.{i}", step) for i, step in enumerate(as_list(cfg.get("param_scheduler")))]
        for where, part in (*hooks(cfg), *schedulers):
            if part.get("save_best") or str(part.get("type")).rpartition(".")[2] in OF_VALIDATION:
                key = f"{where}.save_best" if part.get("save_best") else where
                yield Fault("never acts, for there is no validation", key, fix=f"leave it out: {key}=None")
    metrics = [names(metric) for metric in as_list(cfg.get("val_evaluator"))]
    known = [] if None in metrics else [name for found in metrics for name in found]
    keys = [(hook, key) for _, hook in hooks(cfg) for key in ("save_best", "monitor")]
    asked = [(hook, key, name) for hook, key in keys for name in as_list(hook.get(key))]
    for hook, key, name in asked if metrics else ():
        name = known[0] if name == "auto" and known else name
        if not isinstance(name, str) or name == "auto":
            continue
        if known and name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.3)
            hint = f"did you mean {near[0]}? Others: " if near else "expected one of "
            what = f"got {name!r}, a name that no metric has; {hint}{', '.join(known)}"
            yield Fault(what, f"{key} of {hook['type']}")
        elif not (STATED & hook.keys() or any(part in name.lower() for part in DIRECTED)):
            what = f"not set, and mmengine does not know whether more of {name} is better"
            yield Fault(what, f"rule of {hook['type']}", fix="set it to 'greater', or to 'less'")


def names(metric: Mapping) -> list[str] | None:
    """The names of a metric's values; None for an unknown metric."""
    kind, prefix = str(metric["type"]).rpartition(".")[2], metric.get("prefix")
    if kind.endswith("CocoMetric"):
        kinds = as_list(metric.get("metric", "bbox"))
        has_others = metric.get("classwise") or metric.get("metric_items") or {*kinds} - {"bbox", "segm"}
        return None if has_others else [f"{prefix or 'coco'}/{of}_{name}" for of in kinds for name in COCO]
    if kind == "PanopticMetric":
        return [f"{prefix or 'coco_panoptic'}/{name}" for name in PANOPTIC]
    if kind == "IoUMetric":
        found = [name for of in as_list(metric.get("iou_metrics", "mIoU")) for name in OF_IOU.get(of, ())]
        return [f"{prefix}/{name}" if prefix else name for name in dict.fromkeys(found)]
    return None
