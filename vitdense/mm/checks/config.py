"""Checks of a config's values. torch and mm refuse some wrong values by a stack trace, and train with others."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from mmengine.config import Config
from mmengine.device import get_device
from mmengine.registry import HOOKS, METRICS, OPTIMIZERS, TRANSFORMS

from vitdense.families import is_number, is_whole
from vitdense.mm.config.base import find, flat, unknown_type
from vitdense.mm.config.options import DATALOADER
from vitdense.mm.config.query import as_list, find_class, hooks, leaf_datasets, nodes, type_name
from vitdense.mm.data.faults import Fault
from vitdense.seams import loaders as seam_loaders

LOOPS = {
    "train": ("train_cfg", "train_dataloader", "optim_wrapper"),
    **{split: (f"{split}_cfg", f"{split}_dataloader", f"{split}_evaluator") for split in ("val", "test")},
}
POOLING = ("UPerHead", "PSPHead", "ASPPHead", "DepthwiseSeparableASPPHead", "EncHead")


def loaders(cfg: Config, splits: Sequence[str]) -> Iterator[Fault]:
    """Training, validation and test are complete or absent; keys of data loaders are torch's."""
    for parts in LOOPS.values():  # mmengine's runner refuses incomplete ones in every command
        if (absent := [part for part in parts if cfg.get(part) is None]) and len(absent) < len(parts):
            given = [part for part in parts if part not in absent]
            fix = f"give all of {', '.join(parts)}, or none: --cfg-options {' '.join(f'{x}=None' for x in given)}"
            yield Fault(f"got None, but {', '.join(given)} is there", ", ".join(absent), fix=fix)
    for split in splits:
        if unknown := (cfg.get(f"{split}_dataloader") or {}).keys() - DATALOADER:
            expected = "arguments of torch's DataLoader, `dataset` and `num_batch_per_epoch`"
            yield Fault(f"got {', '.join(sorted(unknown))}, expected {expected}", f"{split}_dataloader")


def types(cfg: Config, splits: Sequence[str]) -> Iterator[Fault]:
    """Hooks, metrics, the optimizer and pipeline steps are registered. Other parts are built by later checks."""
    named = [(HOOKS, where, hook) for where, hook in hooks(cfg)]
    optimizer = (cfg.get("optim_wrapper") or {}).get("optimizer")
    named += [(OPTIMIZERS, "optim_wrapper.optimizer", one) for one in as_list(optimizer) if "train" in splits]
    for where in (f"{split}_evaluator" for split in splits):
        named += [(METRICS, where, metric) for metric in as_list(cfg.get(where))]
    for where in (f"{split}_dataloader" for split in splits if cfg.get(f"{split}_dataloader")):
        for dataset in leaf_datasets(cfg[where].dataset):  # also of the test, which the dry step does not build
            steps = enumerate(dataset.get("pipeline") or ())
            named += [(TRANSFORMS, f"{where}.dataset.pipeline.{i}", step) for i, step in steps]
    for registry, where, part in named:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind is not None and find_class(registry, kind, cfg) is None:
            yield Fault(unknown_type(kind, cfg), where)


def mixing(cfg: Config, splits: Sequence[str]) -> Iterator[Fault]:
    """Steps that mix several images mix their masks, keypoints and label maps too, if these are loaded."""
    loader = cfg.get("train_dataloader") if "train" in splits else None
    pipelines = [part.get("pipeline") for part in nodes(loader.dataset)] if loader else []
    steps = [step for step in nodes(pipelines) if "type" in step]  # a data set is looked for in all frameworks
    has_maps = any(step.get("with_seg", type_name(step) == "LoadPanopticAnnotations") for step in steps)
    lost = "label maps" if has_maps else "keypoints" if {*map(type_name, steps)} & {*seam_loaders()} else ""
    has_masks = any(step.get("with_mask") for step in steps)
    for step in steps:
        kind = find_class(TRANSFORMS, step["type"], cfg)
        if not any("get_indexes" in vars(base) for base in getattr(kind, "__mro__", ())):
            continue
        if lost or (has_masks and kind.__module__.startswith("mmdet.") and kind.__name__ != "CopyPaste"):
            what = f"{step['type']} mixes boxes of images, and not their {lost or 'masks'}"
            fix = "leave it out" if lost else "set type='vitdense.Mosaic', which mixes masks, or leave it out"
            yield Fault(what, "train_dataloader", fix=fix)


def _number(low: float, high: float = math.inf, ends: bool = True) -> Callable[[Any], bool]:
    return lambda x: is_number(x) and (low <= x if ends else low < x) and x < high


def _whole(low: int, high: float = math.inf) -> Callable[[Any], bool]:
    return lambda x: is_whole(x, low) and x < high


NOT_NEGATIVE = (_number(0), "a number from 0 on")
TIME = (_number(0), "epochs or iterations, 0 or more")
TIMES = ("begin", "end", "milestones.*", "T_max", "step_size", "periods.*", "total_steps")  # of schedulers
OF_HOOKS = ("switch_epoch", "begin_epoch", "num_last_epochs", "begin_iter", "starts.*", "ends.*", "save_begin")
CLIP = (_number(0, ends=False), "a number above 0; clip_grad=None does not clip")
SHARE = (_number(0, 1), "0 to below 1")
VALUES = {  # patterns of dotted keys whose values are not None
    "optim_wrapper*.optimizer.lr": NOT_NEGATIVE,
    "optim_wrapper*.optimizer.weight_decay": NOT_NEGATIVE,
    "optim_wrapper*.optimizer.eps": NOT_NEGATIVE,
    "optim_wrapper*.optimizer.momentum": SHARE,
    "optim_wrapper*.optimizer.betas.*": SHARE,
    "optim_wrapper*.clip_grad.max_norm": CLIP,
    "optim_wrapper*.clip_grad.clip_value": CLIP,
    "optim_wrapper*.accumulative_counts": (_whole(1), "iterations, 1 or more"),
    "optim_wrapper*.paramwise_cfg.*_mult": (_number(0), "a factor from 0 on"),
    "randomness.seed": (_whole(0, 2**32), "a whole number from 0 to 2**32 - 1"),
    "auto_scale_lr.base_batch_size": (_whole(1), "images, 1 or more"),
    "train_cfg.max_epochs": (_whole(1), "epochs, 1 or more"),
    "train_cfg.max_iters": (_whole(1), "iterations, 1 or more"),
    "train_cfg.val_interval": (_whole(1), "epochs or iterations, 1 or more"),
    "train_cfg.val_begin": TIME,
    "train_cfg.dynamic_intervals": (lambda x: False, "pairs of a time and an interval"),
    "train_cfg.dynamic_intervals.*.0": TIME,
    "train_cfg.dynamic_intervals.*.1": (_whole(1), "epochs or iterations, 1 or more"),
    **{f"param_scheduler*.{key}": TIME for key in TIMES},
    **{f"{kind}_hooks.*.{key}": TIME for kind in ("default", "custom") for key in OF_HOOKS},
    "default_hooks.*.interval": (_whole(-1), "epochs or iterations, or -1"),
    "model.*loss_weight": (_number(-math.inf), "a number"),
    **{f"{split}_dataloader.dataset*indices": (lambda x: x != 0, "1 image or more") for split in LOOPS},
    **{f"{split}_dataloader.num_workers": (_whole(0, 1000), "processes, 0 to 999") for split in LOOPS},
}


def values(cfg: Config, splits: Sequence[str]) -> Iterator[Fault]:
    """Values of the optimizer, the losses and the run are numbers in their range."""
    loaders_of = {f"{split}_dataloader": split for split in LOOPS}
    parts = {pattern.partition(".")[0].rstrip("*") for pattern in VALUES}
    parts = [part for part in sorted(parts) if cfg.get(part) and loaders_of.get(part, "train") in splits]
    found = {}
    for key, value in flat({part: cfg[part] for part in parts}).items():
        holder, _, last = key.rpartition(".")
        found |= {holder: find(cfg, holder), key: value} if last.isdecimal() else {key: value}  # lr=1e-3, is a tuple
    for key, value in found.items():
        for pattern, (fits, expected) in VALUES.items():
            if value is not None and fnmatchcase(key, pattern) and not fits(value):
                yield Fault(f"got {value!r}, expected {expected}", key)


def batch_size(cfg: Config, splits: Sequence[str]) -> Iterator[Fault]:
    """The batch has an image; heads that pool a map to one value per channel need two for their norms, or more GPUs."""
    for split in splits:
        size = (cfg.get(f"{split}_dataloader") or {}).get("batch_size", 1)
        if not isinstance(size, int) or size < 1:
            yield Fault(f"got {size!r}, expected a number of images, 1 or more", f"{split}_dataloader.batch_size")
    alone = cfg.get("launcher", "none") == "none" or get_device() == "cpu"
    if "train" not in splits or not alone or (cfg.get("train_dataloader") or {}).get("batch_size") != 1:
        return
    for head in nodes(cfg.model):
        kind, norm = str(head.get("type")).rpartition(".")[2], str((head.get("norm_cfg") or {}).get("type"))
        if kind in POOLING and "BN" in norm:
            what = f"got 1, but {kind} pools a map to one value per channel, and the statistics of its {norm} need two"
            yield Fault(what, "train_dataloader.batch_size", fix="set --batch-size 2, or another norm")
