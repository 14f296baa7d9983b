"""``--report`` and ``--pictures`` of `vitdense check`."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmengine.config import Config

    from vitdense.mm.checks.sets import DataSet
    from vitdense.mm.data.faults import Fault


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--report", type=Path, metavar="FOLDER", help="write report.html: what was found, with pictures"
    )

    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="draw a batch as the model will see it")


def after(args: argparse.Namespace, cfg: "Config", faults: "Sequence[Fault]", sets: "Sequence[DataSet]") -> None:
    from vitdense.extensions.report.batch import draw_batch
    from vitdense.extensions.report.page import write_report

    if args.report is not None:
        print(f"wrote {write_report(args.report, cfg, faults, sets)}")
    if args.pictures is not None and not any(fault.grave for fault in faults):
        print("drew", *draw_batch(cfg, args.pictures))
