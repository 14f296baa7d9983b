"""Draw what a trained model sees in an image, on one sheet.

Maps of backbone and neck as colours, attention of a position in every stage, effective receptive fields, position
biases.
"""

from collections.abc import Sequence
from pathlib import Path

from vitdense.files import check_writable
from vitdense.mm.config.arguments import add_inference_arguments, make_parser


def main(argv: Sequence[str]) -> int:
    parser = make_parser(__doc__, "vitdense show")
    add_inference_arguments(parser)
    parser.add_argument("image", type=Path, help="image file")
    parser.add_argument("--out", type=Path, help="PNG file, default show/<name of the config>_<name of the image>.png")
    parser.add_argument(
        "--at",
        type=float,
        nargs=2,
        default=(0.5, 0.5),
        metavar=("X", "Y"),
        help="position whose attention is drawn, 0 to 1 from the left and from the top; default: the centre",
    )
    parser.add_argument(
        "--layers",
        nargs="+",
        default=(),
        help="attention layers; default: the last two of every stage, or some of a plain ViT",
    )
    args = parser.parse_args(argv)
    if not all(0 <= at < 1 for at in args.at):
        parser.error(f"--at: got {args.at}, expected two numbers from 0 to below 1")

    from vitdense.extensions.show.sheet import contact_sheet
    from vitdense.mm.config.model_index import trained_of
    from vitdense.mm.console import exit_on_user_error
    from vitdense.mm.precision import device_of

    with exit_on_user_error():
        out = args.out or Path("show") / f"{Path(args.config).stem}_{args.image.stem}.png"
        check_writable(out, "--out")
        options = (args.at[::-1], args.layers, device_of(args.device), args.classes)
        print(contact_sheet(*trained_of(args), args.image, out, *options))
    return 0
