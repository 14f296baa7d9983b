"""Monitors: what a validation decides has one, a metric of that name, and a direction."""

import difflib
from collections.abc import Iterator, Mapping, Sequence

from mmengine.config import Config
from mmengine.hooks import EarlyStoppingHook

from vitdense.mm.checks.base import Finding
from vitdense.mm.config.query import as_list, hooks
from vitdense.mm.errors import ConfigError

COCO = ("mAP", "mAP_50", "mAP_75", "mAP_s", "mAP_m", "mAP_l")
OF_VALIDATION = ("EarlyStoppingHook", "ValidationPicturesHook", "ReduceOnPlateauLR", "ReduceOnPlateauMomentum")
OF_IOU = {
    "mIoU": ("aAcc", "mIoU", "mAcc"),
    "mDice": ("aAcc", "mDice", "mAcc"),
    "mFscore": ("aAcc", "mFscore", "mPrecision", "mRecall"),
}

PANOPTIC = [name + end for end in ("", "_th", "_st") for name in ("PQ", "SQ", "RQ")]
# Parts of names of which mmengine knows whether more is better, and the options that say so of others.
DIRECTED = [key.lower() for key in EarlyStoppingHook._default_greater_keys + EarlyStoppingHook._default_less_keys]
STATED = {"rule", "greater_keys", "less_keys"}


def find(cfg: Config, splits: Sequence[str]) -> Iterator[Finding]:
    """See the module. Only of metrics whose names are known: mmdet's for COCO and mmseg's IoU."""
    for _, hook in hooks(cfg):
        if "train" in splits and "EarlyStoppingHook" in str(hook["type"]) and "min_delta" not in hook:
            yield ConfigError(
                f"min_delta of {hook['type']}: not set, and mmengine's 0.1 is ten points of an AP; set the smallest "
                f"gain that counts, in the unit of {hook.get('monitor')}: 0.001 of an AP from 0 to 1, 0.1 of an mIoU "
                f"in per cent"
            )
    schedulers = [(f"param_scheduler.{i}", step) for i, step in enumerate(as_list(cfg.get("param_scheduler")))]
    if "train" in splits and all(cfg.get(f"val_{part}") is None for part in ("cfg", "dataloader", "evaluator")):
        for where, part in (*hooks(cfg), *schedulers):
            if part.get("save_best") or str(part.get("type")).rpartition(".")[2] in OF_VALIDATION:
                key = f"{where}.save_best" if part.get("save_best") else where
                yield ConfigError(f"{key}: never acts, for there is no validation; leave it out: {key}=None")
    metrics = [names(metric) for metric in as_list(cfg.get("val_evaluator"))]
    if "train" not in splits or not metrics:
        return
    known = [] if None in metrics else [name for found in metrics for name in found]
    for _, hook in hooks(cfg):
        for key in ("save_best", "monitor"):
            for name in as_list(hook.get(key)):
                if not isinstance(name, str):
                    continue
                name = known[0] if name == "auto" and known else name
                if known and name not in known:
                    near = difflib.get_close_matches(name, known, n=1, cutoff=0.3)
                    hint = f"did you mean {near[0]}? Others: " if near else "expected one of "
                    yield ConfigError(
                        f"{key} of {hook['type']}: got {name!r}, a name that no metric has; {hint}{', '.join(known)}"
                    )
                elif name != "auto" and not (STATED & hook.keys() or any(part in name.lower() for part in DIRECTED)):
                    yield ConfigError(
                        f"rule of {hook['type']}: not set, and mmengine does not know whether more of {name} is "
                        f"better; set it to 'greater', or to 'less'"
                    )


def names(metric: Mapping) -> list[str] | None:
    """What a metric calls its values; None if it is none of the known ones."""
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
