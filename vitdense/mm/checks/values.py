"""Values: those of the optimizer and of the run are in their range.

torch refuses some in a stack trace, and takes others that stop the learning, or turn it round.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from mmengine.config import Config

from vitdense.mm.checks.base import Finding
from vitdense.mm.config.query import flat
from vitdense.mm.errors import ConfigError


def _number(low: float, high: float = math.inf, ends: bool = True) -> Callable[[Any], bool]:
    """Whether a value is a number from `low` to below `high`; `ends`: `low` itself is one."""
    return lambda x: _is(x, int, float) and (low <= x if ends else low < x) and x < high


def _whole(low: int, high: float = math.inf) -> Callable[[Any], bool]:
    return lambda x: _is(x, int) and low <= x < high


def _is(value: Any, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


PARTS = ("optim_wrapper", "randomness", "auto_scale_lr", "train_cfg", "train_dataloader")
# Dotted keys as patterns, of what is not None.
VALUES = {
    "optim_wrapper*.optimizer.lr": (_number(0), "a number from 0 on"),
    "optim_wrapper*.optimizer.weight_decay": (_number(0), "a number from 0 on"),
    "optim_wrapper*.optimizer.eps": (_number(0), "a number from 0 on"),
    "optim_wrapper*.optimizer.momentum": (_number(0, 1), "0 to below 1"),
    "optim_wrapper*.optimizer.betas.*": (_number(0, 1), "0 to below 1"),
    "optim_wrapper*.clip_grad.max_norm": (_number(0, ends=False), "a number above 0; clip_grad=None does not clip"),
    "optim_wrapper*.clip_grad.clip_value": (_number(0, ends=False), "a number above 0; clip_grad=None does not clip"),
    "optim_wrapper*.accumulative_counts": (_whole(1), "iterations, 1 or more"),
    "optim_wrapper*.paramwise_cfg.*_mult": (_number(0), "a factor from 0 on"),
    "randomness.seed": (_whole(0, 2**32), "a whole number from 0 to 2**32 - 1"),
    "auto_scale_lr.base_batch_size": (_whole(1), "images, 1 or more"),
    "train_cfg.max_epochs": (_whole(1), "epochs, 1 or more"),
    "train_cfg.max_iters": (_whole(1), "iterations, 1 or more"),
    "train_cfg.val_interval": (_whole(1), "epochs or iterations, 1 or more"),
    "train_dataloader.num_workers": (_whole(0), "processes, 0 or more"),
}


def find(cfg: Config, splits: Sequence[str]) -> Iterator[Finding]:
    """See the module."""
    if "train" not in splits:
        return
    for key, value in flat({part: cfg[part] for part in PARTS if cfg.get(part)}).items():
        for pattern, (fits, expected) in VALUES.items():
            if value is not None and fnmatchcase(key, pattern) and not fits(value):
                yield ConfigError(f"{key}: got {value!r}, expected {expected}")
