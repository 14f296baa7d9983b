"""Export a trained detector, or its maps, or a segmentor to torch.export (pt2) or ONNX.

The file takes normalised images of all sizes and batches, or with --static one image of one size; --with-preprocessing
makes them photos. It is compared with the model before it is written.
"""

from pathlib import Path

import vitdense  # noqa: F401  first: it makes mmcv importable without a compiler
from vitdense.console import in_utf8
from vitdense.mm.cli.export import FORMATS, INT8_BOUND, export_joined
from vitdense.mm.config.arguments import add_checkpoint, add_classes, add_joined, make_parser, name_of, whole_number
from vitdense.mm.config.model_index import trained_of
from vitdense.mm.console import exit_on_user_error
from vitdense.mm.joined import find_models


def main() -> None:
    parser = make_parser(__doc__)
    add_checkpoint(parser)
    add_classes(parser)
    add_joined(parser)
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
    parser.add_argument(
        "--with-preprocessing",
        action="store_true",
        help="the file takes photos, uint8 RGB, which it resizes and normalises",
    )
    parser.add_argument("--images", nargs="+", default=[], help="photos to compare at (default: test data)")
    parser.add_argument(
        "--unchecked", action="store_true", help="write it also where the model finds nothing to compare"
    )
    parser.add_argument("--no-proof", dest="proof", action="store_false", help="no NAME.proof, for vitdense verify")
    parser.add_argument("--out", type=Path, help="default exports/<name of the config>.<format>")
    parser.need("--calibrate", "--int8")
    parser.need("--int8-bound", "--int8")
    args = parser.parse_args()
    with exit_on_user_error():
        others = () if args.joined is None else filter(None, (args.checkpoint, *args.joined))
        names = [args.config, *others]
        path = args.out or Path("exports") / f"{name_of(names)}.{args.to}"
        static = tuple(args.static) if args.static else None
        precision = "int8" if args.int8 else "float16" if args.half else "float32"
        options = (path, args.to, static, precision, args.maps, args.images, args.with_preprocessing, args.calibrate)
        models = find_models(names) if args.joined is not None else {"": trained_of(args)}
        print(export_joined(models, *options, args.unchecked, args.classes, args.proof, args.int8_bound))


if __name__ == "__main__":
    in_utf8()
    main()
