"""``--joined`` of ``vitdense export`` and ``predict``: further models on the trunk of the first."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitdense.mm.config.arguments import Parser


def add_options(parser: "Parser") -> None:
    parser.add_argument(
        "--joined",
        nargs="*",
        metavar="MODEL",
        help="work folders or published models on the same trunk, which then runs once",
    )
    for other in ("--cfg-options", "--classes"):
        parser.apart("--joined", other)


def instead(args: argparse.Namespace) -> int | None:
    """Export or predict with several models; None without the option."""
    if args.joined is None:
        return None

    from vitdense.extensions.joined.commands import export_joined, predict_joined
    from vitdense.extensions.joined.model import find_models
    from vitdense.mm.cli.export import Wish
    from vitdense.mm.precision import Inference

    is_export = "to" in args
    names = [args.config, *filter(None, [args.checkpoint if is_export else None]), *args.joined]
    models, name = find_models(names), "+".join(Path(one).stem for one in names)
    if is_export:
        path = args.out or Path("exports") / f"{name}.{args.to}"
        print(export_joined(models, Wish.of(args, path), args))
        return 0
    out_dir = args.as_dataset or args.out_dir or Path("predictions") / name
    options = (args.format == "dataset", args.indices, args.as_dataset is not None)
    print("", *predict_joined(models, args.images, out_dir, Inference.of(args), *options), sep="\n")
    return 0
