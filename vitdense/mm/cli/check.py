"""`python -m vitdense check`: what training checks before its start, and a report of the data."""

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain, repeat
from pathlib import Path

from mmengine.config import Config
from mmengine.device import get_device

from vitdense.files import atomic_write
from vitdense.mm.checks import dry_step, findings
from vitdense.mm.checks.pictures import draw_batch
from vitdense.mm.checks.report import write_report
from vitdense.mm.checks.schedule import warm_up
from vitdense.mm.checks.sets import data_sets
from vitdense.mm.config.arguments import make_parser
from vitdense.mm.config.base import Asked, describe, run_passes
from vitdense.mm.config.load import config_of
from vitdense.mm.config.passes import STARTING, TRAINING, built
from vitdense.mm.console import exit_on_user_error
from vitdense.mm.data.faults import Fault, caught
from vitdense.mm.data.images import FILES_READ
from vitdense.mm.errors import ConfigError


def main(argv: Sequence[str]) -> int:
    """The command; its exit status: 0, or 2 if there are errors."""
    parser = make_parser(__doc__)
    parser.prog = "python -m vitdense check"
    parser.add_argument("--all", action="store_true", help=f"read every image file, not only {FILES_READ} per data set")
    parser.add_argument(
        "--report", type=Path, metavar="FOLDER", help="write report.html: what was found, with pictures"
    )
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="draw a batch as the model will see it")
    parser.add_argument("--write", type=Path, metavar="FILE.py", help="write the config with everything resolved")
    parser.add_argument("--passes", action="store_true", help="print what each pass changes before a training")
    args, changes = parser.parse_args(argv), []
    with exit_on_user_error():
        cfg = config_of(args, changes)
        if args.passes:
            trained = copy.deepcopy(cfg)
            run_passes((*TRAINING, *STARTING), trained, Asked(), changes)
            built(trained, Asked(), changes=changes)
            print(*describe(changes), "", sep="\n")
        status = report(cfg, args.all, args.report)
        if args.pictures and status == 0:
            print("drew", *draw_batch(cfg, args.pictures))
        if args.write:
            with atomic_write(args.write) as scratch:
                scratch.write_text(cfg.pretty_text, encoding="utf-8")
            print(f"wrote {args.write}")
    return status


def report(cfg: Config, all_files: bool = False, folder: Path | None = None) -> int:
    """Check a config and describe its data.

    Args:
        cfg: From `load_config`.
        all_files: Read every image file and label map, not only `FILES_READ` per data set.
        folder: For the page with pictures; None: there is none.

    Returns:
        The exit status: 0, or 2 if there are errors.
    """
    print(f"{'config':12}{cfg.filename}: {cfg.model.type}, {cfg.get('default_scope', 'mmdet')}", flush=True)
    given = {split: cfg.get(f"{split}_cfg") is not None for split in ("train", "val", "test")}
    splits = tuple(split for split in given if given[split] and cfg.get(f"{split}_dataloader"))
    sets, described, seen = data_sets(cfg, splits, None if all_files else FILES_READ), [], {}
    for one in sets:
        if id(one.kept) in seen:
            _rows(one.label)(f"as {seen[id(one.kept)].label}")
        elif one.kind is not None:  # a fault that the checks find
            seen[id(one.kept)] = one
            described += caught(one.describe, _rows(one.label))
    faults = [*findings(cfg, splits, sets), *described]
    with suppress(ConfigError):  # of the annotations, a fault already
        faults += warm_up(cfg, sum(one.num_train for one in seen.values()))
    if "train" in splits and not any(fault.grave for fault in faults):
        text = f"losses and gradients of a small batch, and its validation, on {get_device()} ..."
        print(f"{'dry step':12}{text}", flush=True)
        faults += dry_step.find(cfg, splits)
    faults = _ordered(faults)
    errors = sum(fault.grave for fault in faults)
    print("", *(f"{'error' if fault.grave else 'warning'}: {fault}" for fault in faults), sep="\n")
    print(f"errors: {errors}, warnings: {len(faults) - errors}")
    if folder is not None:
        print(f"wrote {write_report(folder, cfg, faults, list(seen.values()))}")
    return 2 if errors else 0


def _rows(name: str) -> Callable[[str], None]:
    """What prints rows of a table, the first with a name."""
    names = chain([name], repeat(""))
    return lambda text: print(f"{next(names):12}{text}", flush=True)


def _ordered(faults: Iterable[Fault]) -> list[Fault]:
    """Faults, each once, also where the test set is the validation set; errors first, then what most things have."""
    of = {str(fault): fault for fault in faults}
    once = [x for line, x in of.items() if not line.startswith("test_") or f"val_{line[5:]}" not in of]
    return sorted(once, key=lambda fault: (not fault.grave, -len(fault.items) / (fault.total or math.inf)))
