"""Train a detector or a segmentor from a config."""

import vitdense  # noqa: F401  first: it makes mmcv importable without a compiler
from vitdense.engine.config import add_run_arguments, config_of, make_parser
from vitdense.engine.launch import AMP_DTYPES, exit_on_user_error, train


def main() -> None:
    parser = make_parser(__doc__)
    add_run_arguments(parser)
    parser.add_argument(
        "--amp",
        nargs="?",
        const="float16",
        choices=AMP_DTYPES,
        help="automatic mixed precision, by default in float16; needs a GPU",
    )
    parser.add_argument(
        "--resume",
        nargs="?",
        const="auto",
        metavar="CHECKPOINT",
        help="continue from this checkpoint; by default, from the latest of the work folder",
    )
    parser.add_argument("--auto-scale-lr", action="store_true", help="scale the learning rate to the total batch size")
    args = parser.parse_args()
    with exit_on_user_error():
        train(config_of(args), args.amp, args.resume, args.auto_scale_lr)


if __name__ == "__main__":
    main()
