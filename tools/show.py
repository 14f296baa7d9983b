"""Draw what a trained model sees in an image, on one sheet.

Maps of backbone and neck as colours, attention of a position in every stage, effective receptive fields, position
biases.
"""

from pathlib import Path

import vitdense  # noqa: F401  first: it makes mmcv importable without a compiler
from vitdense.console import in_utf8
from vitdense.mm.cli.show import contact_sheet
from vitdense.mm.config.arguments import add_inference_arguments, make_parser
from vitdense.mm.config.model_index import trained_of
from vitdense.mm.console import exit_on_user_error


def main() -> None:
    parser = make_parser(__doc__)
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
    args = parser.parse_args()
    if not all(0 <= at < 1 for at in args.at):
        parser.error(f"--at: got {args.at}, expected two numbers from 0 to below 1")
    with exit_on_user_error():
        out = args.out or Path("show") / f"{Path(args.config).stem}_{args.image.stem}.png"
        options = (args.at[::-1], args.layers, args.device, args.classes)
        print(contact_sheet(*trained_of(args), args.image, out, *options))


if __name__ == "__main__":
    in_utf8()
    main()
