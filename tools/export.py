"""Export a trained detector, or its maps, or a segmentor to torch.export (pt2) or ONNX.

The file takes normalised images of all sizes and batches, or with --static one image of one size. It is compared with
the model before it is written.
"""

import sys
from pathlib import Path

import vitdense  # noqa: F401  first: it makes mmcv importable without a compiler
from vitdense.console import in_utf8
from vitdense.mm.config.arguments import add_checkpoint, add_classes, make_parser, whole_number
from vitdense.mm.export import FORMATS, INT8_BOUND
from vitdense.seams import ask, call


def main() -> None:
    parser = make_parser(__doc__, "vitdense export")
    add_checkpoint(parser)
    add_classes(parser)
    parser.add_argument("--to", choices=FORMATS, required=True)
    parser.add_argument(
        "--static", nargs=2, type=whole_number, metavar=("H", "W"), help="image size in pixels, for one image"
    )
    precision = parser.add_mutually_exclusive_group()
    precision.add_argument("--half", action="store_true", help="weights and maps in half precision")
    precision.add_argument("--int8", action="store_true", help="convolutions and linear layers in int8")
    parser.add_argument(
        "--calibrate", nargs="+", default=[], metavar="IMAGE", help="for --int8; default: 100 of the training data"
    )
    parser.add_argument(
        "--int8-bound",
        type=float,
        default=INT8_BOUND,
        metavar="SHARE",
        help="for --int8: objects that it may lose or find anew, as a share of the model's; of a segmentor, pixels of "
        "another class (default %(default)s)",
    )
    parser.add_argument("--maps", action="store_true", help="of a detector of boxes, its maps alone")
    parser.add_argument("--images", nargs="+", default=[], help="photos to compare at (default: test data)")
    parser.add_argument(
        "--unchecked", action="store_true", help="write it also where the model finds nothing to compare"
    )
    parser.add_argument("--out", type=Path, help="default exports/<name of the config>.<format>")
    parser.need("--calibrate", "--int8")
    parser.need("--int8-bound", "--int8")
    call("export", "add_options", parser)
    args = parser.parse_args()

    from vitdense.mm.cli.export import Wish, export
    from vitdense.mm.config.model_index import trained_of
    from vitdense.mm.console import exit_on_user_error

    with exit_on_user_error():
        if (status := ask("export", "instead", args)) is not None:
            sys.exit(status)
        path = args.out or Path("exports") / f"{Path(args.config).stem}.{args.to}"
        print(export(*trained_of(args), Wish.of(args, path), args.classes, args))


if __name__ == "__main__":
    in_utf8()
    main()
