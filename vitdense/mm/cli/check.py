"""`vitdense check`: what training checks before its start, and a report of the data."""

import argparse
import copy
from collections.abc import Sequence
from pathlib import Path

from vitdense.files import atomic_write, check_writable
from vitdense.mm.config.arguments import make_parser
from vitdense.mm.config.asked import Asked
from vitdense.seams import call


def main(argv: Sequence[str]) -> int:
    args = _parser().parse_args(argv)

    from vitdense.mm.checks.report import look
    from vitdense.mm.config.base import describe, run_passes
    from vitdense.mm.config.load import config_of
    from vitdense.mm.config.passes import STARTING, TRAINING, built
    from vitdense.mm.console import exit_on_user_error

    changes = []
    with exit_on_user_error():
        if args.write:
            check_writable(args.write, "--write")
        cfg = config_of(args, changes)
        if args.passes:
            trained = copy.deepcopy(cfg)
            run_passes((*TRAINING, *STARTING), trained, Asked(), changes)
            built(trained, Asked(), changes=changes)
            print(*describe(changes), "", sep="\n")
        faults, sets = look(cfg, args.all)
        call("check", "after", args, cfg=cfg, faults=faults, sets=sets)
        status = 2 if any(fault.grave for fault in faults) else 0
        if args.write:
            with atomic_write(args.write) as scratch:
                scratch.write_text(cfg.pretty_text, encoding="utf-8")
            print(f"wrote {args.write}")
    return status


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(__doc__, "vitdense check")
    parser.add_argument("--all", action="store_true", help="read every image file, not only a sample of each data set")
    parser.add_argument("--write", type=Path, metavar="FILE.py", help="write the config with everything resolved")
    parser.add_argument("--passes", action="store_true", help="print what each pass changes before a training")
    call("check", "add_options", parser)
    return parser
