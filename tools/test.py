"""Evaluate a checkpoint of a detector or a segmentor."""

import json
import math
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import vitdense  # noqa: F401  first: it makes mmcv importable without a compiler
from vitdense.console import in_utf8
from vitdense.files import atomic_write, check_writable
from vitdense.mm.config.arguments import add_checkpoint, add_prediction, add_run_arguments, make_parser
from vitdense.mm.config.asked import Asked
from vitdense.seams import ask


def main() -> None:
    parser = make_parser(__doc__, "vitdense test", needs_config=False)
    add_checkpoint(parser)
    add_run_arguments(parser, "test")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="file for the metrics")
    add_prediction(parser)
    parser.apart("--tta", "--tiles")
    args = parser.parse_args()

    from mmengine.device import get_device

    from vitdense.mm.config.model_index import trained_of
    from vitdense.mm.console import exit_on_user_error
    from vitdense.mm.precision import Inference
    from vitdense.mm.train.launch import test

    with exit_on_user_error():
        if (status := ask("test", "instead", args)) is not None:
            sys.exit(status)
        if args.config is None:
            parser.error("got no config, expected one, a work folder or the name of a published model")
        if args.out:
            check_writable(args.out, "--out")
        inference, options = Inference.of(args, device=get_device()), Asked.keywords("test", args)
        test(*trained_of(args, measured=True), inference, partial(tell, args.out), **options)


def tell(file: Path | None, metrics: Mapping[str, float]) -> None:
    """Print metrics, and write them to a file if one is asked for."""
    from mmengine.dist import is_main_process

    if not is_main_process():
        return
    for name, value in metrics.items():
        print(f"{name:24} {value:.4f}")
    if file:
        with atomic_write(file) as scratch:
            known = {name: None if math.isnan(x) else x for name, x in metrics.items()}  # JSON has no NaN
            scratch.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    in_utf8()
    main()
