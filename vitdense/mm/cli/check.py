"""`python -m vitdense check`: what training checks before its start, and a report of the data."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mmengine.config import Config
from mmengine.device import get_device
from mmengine.registry import DATASETS

from vitdense.files import atomic_write
from vitdense.mm.checks import dry_step, findings
from vitdense.mm.checks.description import Description
from vitdense.mm.checks.pictures import draw_batch
from vitdense.mm.checks.schedule import warm_up
from vitdense.mm.config.arguments import make_parser
from vitdense.mm.config.base import Asked, describe, run_passes
from vitdense.mm.config.load import config_of
from vitdense.mm.config.passes import STARTING, TRAINING, built
from vitdense.mm.config.query import find_class, leaf_datasets
from vitdense.mm.console import USER_ERRORS, exit_on_user_error, explain
from vitdense.mm.data.faults import Fault
from vitdense.mm.data.images import FILES_READ


def main(argv: Sequence[str]) -> int:
    """The command; its exit status: 0, or 2 if there are errors."""
    parser = make_parser(__doc__)
    parser.prog = "python -m vitdense check"
    parser.add_argument("--all", action="store_true", help=f"read every image file, not only {FILES_READ} per data set")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="draw a batch as the model will see it")
    parser.add_argument("--write", type=Path, metavar="FILE.py", help="write the config with everything resolved")
    parser.add_argument("--passes", action="store_true", help="print what each pass changes before a training")
    args, changes = parser.parse_args(argv), []
    with exit_on_user_error():
        cfg = config_of(args, changes)
        if args.passes:
            trained = copy.deepcopy(cfg)
            run_passes([*TRAINING, *(step for step in STARTING if step.name != "checks")], trained, Asked(), changes)
            built(trained, Asked(), changes=changes)
            print(*describe(changes), "", sep="\n")
        status = report(cfg, args.all)
        if args.pictures and status == 0:
            print("drew", *draw_batch(cfg, args.pictures))
        if args.write:
            with atomic_write(args.write) as scratch:
                scratch.write_text(cfg.pretty_text, encoding="utf-8")
            print(f"wrote {args.write}")
    return status


def report(cfg: Config, all_files: bool = False) -> int:
    """Check a config and describe its data.

    Args:
        cfg: From `load_config`.
        all_files: Read every image file and label map, not only `FILES_READ` per data set.

    Returns:
        The exit status: 0, or 2 if there are errors.
    """
    print(f"{'config':12}{cfg.filename}: {cfg.model.type}, {cfg.get('default_scope', 'mmdet')}", flush=True)
    given = {split: cfg.get(f"{split}_cfg") is not None for split in ("train", "val", "test")}
    splits = tuple(split for split in given if given[split] and cfg.get(f"{split}_dataloader"))
    described = list(_described(cfg, splits, None if all_files else FILES_READ))
    faults = [*_collected(findings(cfg, splits)), *described]
    if "train" in splits and not any(fault.grave for fault in faults):
        text = f"losses and gradients of a small batch, and its validation, on {get_device()} ..."
        print(f"{'dry step':12}{text}", flush=True)
        faults += dry_step.find(cfg, splits)
    return _print_faults(faults)


def _described(cfg: Config, splits: Sequence[str], number: int | None) -> Iterator[Fault]:
    """Print rows about the data sets; their faults."""
    seen, num_train = {}, 0
    for split in splits:
        for dataset in leaf_datasets(cfg[f"{split}_dataloader"].dataset):
            kind, row = find_class(DATASETS, dataset["type"], cfg), _Rows(split)
            files = str([dataset.get(key) for key in ("type", "data_root", "ann_file", "data_prefix", "indices")])
            if files in seen:
                row(f"as {seen[files]}")
            elif kind is not None:  # a fault that the checks find
                seen[files] = split
                description = Description(split, dataset, kind, cfg, number, row)
                yield from _collected(description.faults())
                num_train += description.num_train
    yield from warm_up(cfg, num_train)


class _Rows:
    """Prints rows of a table, the first with a name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, text: str) -> None:
        print(f"{self.name:12}{text}", flush=True)
        self.name = ""


def _collected(faults: Iterable[Fault]) -> Iterator[Fault]:
    """Faults, and an error that a user can fix as the last of them."""
    try:
        yield from faults
    except USER_ERRORS as error:
        yield Fault(explain(error))


def _print_faults(faults: Iterable[Fault]) -> int:
    """Print faults, each once, also where the test set is the validation set; the exit status."""
    errors, warnings = (
        [line for line in dict.fromkeys(lines) if not line.startswith("test_") or f"val_{line[5:]}" not in lines]
        for lines in ([str(fault) for fault in faults if fault.grave == grave] for grave in (True, False))
    )
    print("", *(f"warning: {line}" for line in warnings), *(f"error: {line}" for line in errors), sep="\n")
    print(f"errors: {len(errors)}, warnings: {len(warnings)}")
    return 2 if errors else 0
