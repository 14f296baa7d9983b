"""Draw loss, learning rate and validation metrics of one or more training runs as one picture."""

from pathlib import Path

import vitdense  # noqa: F401  first: it makes mmcv importable without a compiler
from vitdense.console import in_utf8
from vitdense.mm.config.arguments import Parser


def main() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("work_dirs", nargs="+", type=Path, help="work folders of runs to compare")
    parser.add_argument("--out", type=Path, default=Path("curves.png"), metavar="FILE.png", help="default: curves.png")
    parser.add_argument(
        "--metrics",
        nargs="+",
        default=(),
        metavar="NAME",
        help="metrics as named in the log, such as coco/bbox_mAP_50; default: all that end with mAP or mIoU",
    )
    args = parser.parse_args()

    from vitdense.mm.console import exit_on_user_error
    from vitdense.mm.train.curves import draw_curves

    with exit_on_user_error():
        print(draw_curves(args.work_dirs, args.out, args.metrics))


if __name__ == "__main__":
    in_utf8()
    main()
