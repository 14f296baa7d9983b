"""Evaluate a checkpoint of a detector or a segmentor."""

import json
import math
from pathlib import Path

from mmengine.device import get_device
from mmengine.dist import is_main_process

import vitdense  # noqa: F401  first: it makes mmcv importable without a compiler
from vitdense.console import in_utf8
from vitdense.files import atomic_write, check_writable
from vitdense.mm.config.arguments import add_checkpoint, add_run_arguments, add_tiles, make_parser
from vitdense.mm.config.model_index import trained_of
from vitdense.mm.console import exit_on_user_error
from vitdense.mm.precision import Inference, add_amp, add_onednn
from vitdense.mm.train.launch import test


def main() -> None:
    parser = make_parser(__doc__)
    add_run_arguments(parser)
    add_checkpoint(parser)
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="file for the metrics")
    parser.add_argument("--tta", action="store_true", help="test-time augmentation as in the config")
    parser.add_argument(
        "--operating-point",
        metavar="WISH",
        help="find the scores from which on objects of a detector count, for precision=0.9, recall=0.8 or the best f1 "
        "on the validation data, and what scores mean; both go into the checkpoint, for predictions and exports",
    )
    parser.add_argument("--by-class", action="store_true", help="an operating point with thresholds of the classes")
    add_tiles(parser)
    add_amp(parser)
    add_onednn(parser)
    parser.apart("--tta", "--tiles")
    parser.apart("--operating-point", "--tta", "--tiles")
    parser.need("--by-class", "--operating-point")
    args = parser.parse_args()
    with exit_on_user_error():
        if args.out:
            check_writable(args.out, "--out")
        options = (args.tta, args.operating_point, args.by_class)
        metrics = test(*trained_of(args), Inference.of(args, device=get_device()), *options)
        if not is_main_process():
            return
        for name, value in metrics.items():
            print(f"{name:24} {value:.4f}")
        if args.out:
            with atomic_write(args.out) as scratch:
                known = {name: None if math.isnan(x) else x for name, x in metrics.items()}  # JSON has no NaN
                scratch.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    in_utf8()
    main()
