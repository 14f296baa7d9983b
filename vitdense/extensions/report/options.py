"""``--report FOLDER`` of `vitdense check`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from mmengine.config import Config

from vitdense.extensions.report.page import write_report
from vitdense.mm.checks.sets import DataSet
from vitdense.mm.data.faults import Fault


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the folder of the page."""
    parser.add_argument(
        "--report", type=Path, metavar="FOLDER", help="write report.html: what was found, with pictures"
    )


def after(args: argparse.Namespace, cfg: Config, faults: Sequence[Fault], sets: Sequence[DataSet]) -> None:
    """Write the page."""
    if args.report is not None:
        print(f"wrote {write_report(args.report, cfg, faults, sets)}")
