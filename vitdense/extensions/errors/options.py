"""``--report`` of `vitdense test`."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vitdense.errors import OptionError

if TYPE_CHECKING:
    from mmengine.runner import Runner

    from vitdense.mm.config.arguments import Parser


def add_options(parser: "Parser") -> None:
    parser.add_argument("others", nargs="*", metavar="MODEL", help="of --report: further models, to set side by side")
    text = "folder for report.html: where the model fails, and which labels look wrong; or FILE.csv, FILE.md: the table"
    parser.add_argument("--report", type=Path, metavar="DIR", help=text)
    text = "results of COCO, in place of a model: --predictions predictions.json --truth val.json --report DIR"
    parser.add_argument("--predictions", type=Path, metavar="FILE", help=text)
    parser.add_argument("--truth", type=Path, metavar="FILE", help="of --predictions: the annotations of COCO")
    parser.add_argument("--images", type=Path, metavar="DIR", help="of --predictions: images; default beside --truth")
    for option, other in (("predictions", "truth"), ("truth", "predictions"), ("images", "truth"), ("truth", "report")):
        parser.need(f"--{option}", f"--{other}")


def instead(args: argparse.Namespace) -> int | None:
    """Report predictions without a model, or several models."""
    names = models_of(args)
    if args.predictions is None and not names:
        return None
    if args.predictions and args.config is not None:
        raise OptionError(f"--predictions: got the model {args.config} too; give one of the two")
    if args.report is None:
        raise OptionError(f"got the models {', '.join(names)} without --report DIR; give one, or --report too")

    from vitdense.extensions.errors.report import page_of, write_report
    from vitdense.files import check_writable

    check_writable(page_of(args.report), "--report")
    if names:
        from vitdense.extensions.errors.compare import compare

        path = compare(args, names)
    else:
        from vitdense.extensions.errors.predictions import tested_of

        path = write_report(args.report, tested_of(args.predictions, args.truth, args.images))
    print(f"wrote {path}")
    return 0


def models_of(args: argparse.Namespace) -> list[str]:
    """The models of a comparison: three or more, two work folders, or two of which the second is a published model."""
    from vitdense.mm.config.model_index import find_published
    from vitdense.mm.work_folder import WorkFolder

    given = [one for one in (args.config, args.checkpoint, *args.others) if one]
    folders = [one for one in given if Path(one).is_dir() and WorkFolder(Path(one)).checkpoints]
    two = len(given) == 2 and args.report and (folders == given or find_published(given[1]))
    return given if len(given) > 2 or two else []


def before(args: argparse.Namespace, runner: "Runner") -> None:
    """Let the metric keep what the report is made of."""
    if args.report is None:
        return

    from mmengine.dist import get_world_size

    from vitdense.extensions.errors.report import page_of, watched
    from vitdense.files import check_writable

    if get_world_size() > 1:
        raise OptionError(f"--report: got {get_world_size()} processes, expected one")
    check_writable(page_of(args.report), "--report")
    args.watched = watched(runner)


def after(args: argparse.Namespace, metrics: Mapping[str, float], runner: "Runner") -> None:
    """Write the page, after the metrics."""
    if args.report is None:
        return

    from vitdense.extensions.errors.report import tested_of, write_report

    tested = tested_of(runner, args.watched, metrics, args.tiles, args.overlap)
    if "models" in args:  # of `compare`
        args.models.append((tested, runner))
        return
    print(f"wrote {write_report(args.report, tested)}")
