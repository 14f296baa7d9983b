"""Draw loss, learning rate and validation metrics of one or more training runs as one picture."""

from collections.abc import Sequence
from pathlib import Path

from vitdense.files import check_writable
from vitdense.mm.config.arguments import Parser


def main(argv: Sequence[str]) -> int:
    parser = Parser("vitdense plot", description=__doc__)
    parser.add_argument("work_dirs", nargs="+", type=Path, help="work folders of runs to compare")
    parser.add_argument("--out", type=Path, default=Path("curves.png"), metavar="FILE.png", help="default: curves.png")
    parser.add_argument(
        "--metrics",
        nargs="+",
        default=(),
        metavar="NAME",
        help="metrics as named in the log, such as coco/bbox_mAP_50; default: all that end with mAP or mIoU",
    )
    args = parser.parse_args(argv)

    from vitdense.extensions.curves.curves import draw_curves
    from vitdense.mm.console import exit_on_user_error

    with exit_on_user_error():
        check_writable(args.out, "--out")
        print(draw_curves(args.work_dirs, args.out, args.metrics))
    return 0
