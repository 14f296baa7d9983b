"""Check a config and describe its data, printing both."""

import copy
import math
from collections.abc import Callable
from itertools import chain, repeat

from mmengine.config import Config
from mmengine.device import get_device

from vitdense.mm.checks import dry_step, findings
from vitdense.mm.checks.schedule import warm_up
from vitdense.mm.checks.sets import DataSet, data_sets
from vitdense.mm.config.asked import Asked
from vitdense.mm.config.base import run_passes
from vitdense.mm.config.passes import SHARE_BATCH
from vitdense.mm.data.faults import Fault, caught
from vitdense.mm.data.images import FILES_READ


def report(cfg: Config, trains: bool = True) -> int:
    """As `look`, but returns the exit status: 0, or 2 for errors."""
    faults, _ = look(cfg, trains=trains)
    return 2 if any(fault.grave for fault in faults) else 0


def look(cfg: Config, all_files: bool = False, trains: bool = True) -> tuple[list[Fault], list[DataSet]]:
    """Check a config, describe its data, and print both.

    Args:
        cfg: From `load_config`; it stays as it is.
        all_files: Read every image file and label map, not only `FILES_READ` per data set.
        trains: Whether to build the model and make the dry step.

    Returns:
        The faults without duplicates, errors first; and the data sets, one for the same files.
    """
    print(f"{'config':12}{cfg.filename}: {cfg.model.type}, {cfg.get('default_scope', 'mmdet')}", flush=True)
    splits = [
        split
        for split in ("train", "val", "test")
        if cfg.get(f"{split}_cfg") is not None and cfg.get(f"{split}_dataloader")
    ]
    cfg = copy.deepcopy(cfg)
    faults = [*caught(run_passes, (SHARE_BATCH,), cfg, Asked())] if "train" in splits else []
    sets = data_sets(cfg, splits, None if all_files else FILES_READ)
    faults += findings(cfg, splits, sets, trains)
    for one in sets:
        if one.first is not one:
            _rows(one.label)(f"as {one.first.label}")
        elif one.kind is not None:  # else the checks report it
            faults += caught(one.describe, _rows(one.label))
    sets = [one for one in sets if one.first is one and one.kind is not None]
    is_good = not any(fault.grave for fault in faults)
    if is_good:
        faults += warm_up(cfg, sum(one.num_train for one in sets))
    if is_good and trains and "train" in splits:
        print(f"{'dry step':12}losses, gradients and a validation of a small batch on {get_device()} ...", flush=True)
        faults += dry_step.find(cfg, splits, _rows(""))
    found = {str(fault): fault for fault in faults}
    # Without duplicates from a test set that is the validation set; errors first, then by number of items.
    once = [x for line, x in found.items() if not line.startswith("test_") or f"val_{line[5:]}" not in found]
    faults = sorted(once, key=lambda fault: (not fault.grave, -len(fault.items) / (fault.total or math.inf)))
    errors = sum(fault.grave for fault in faults)
    print("", *(f"{'error' if fault.grave else 'warning'}: {fault}" for fault in faults), sep="\n")
    print(f"errors: {errors}, warnings: {len(faults) - errors}")
    return faults, sets


def _rows(name: str) -> Callable[[str], None]:
    names = chain([name], repeat(""))
    return lambda text: print(f"{next(names):12}{text}", flush=True)
