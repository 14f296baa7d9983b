"""Count parameters and MACs (FLOPs in papers) of the model of a config, per module and in total."""

import json
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

import vitdense  # noqa: F401  first: it makes mmcv importable without a compiler
from vitdense.console import in_utf8
from vitdense.mm.config.arguments import make_parser, whole_number

if TYPE_CHECKING:
    from vitdense.flops import Row


def as_json(rows: "list[Row]") -> dict[str, float]:
    return {
        "params_m": round(sum(row.params for row in rows) / 1e6, 3),
        "gmacs": round(sum(row.macs for row in rows) / 1e9, 2),
    }


def main() -> None:
    parser = make_parser(__doc__, "vitdense flops")
    parser.add_argument(
        "--shape",
        type=whole_number,
        nargs=2,
        default=(800, 1280),
        metavar=("H", "W"),
        help="image size in pixels, default 800 1280",
    )
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of the table")
    args = parser.parse_args()

    import torch

    from vitdense.flops import count, table
    from vitdense.mm.config.base import build_model
    from vitdense.mm.config.load import config_of
    from vitdense.mm.console import exit_on_user_error

    with exit_on_user_error():
        with redirect_stdout(sys.stderr):  # stdout has the table or the JSON alone
            cfg = config_of(args)
            with torch.device("meta"):
                model = build_model(cfg).eval()
        rows = count(model, tuple(args.shape))
        if args.json:
            print(json.dumps({**as_json(rows), "backbone": as_json(rows[:1])}))
        else:
            h, w = args.shape
            print(f"one image of {h}x{w} pixels (--shape); 1 MAC = 1 FLOP of papers\n\n{table(rows)}")


if __name__ == "__main__":
    in_utf8()
    main()
