"""Train a detector or a segmentor from a config."""

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import NamedTuple

import vitdense  # noqa: F401  first: it makes mmcv importable without a compiler
from vitdense.console import in_utf8
from vitdense.mm.config.arguments import add_run_arguments, make_parser
from vitdense.mm.config.asked import Asked, above_zero, whole_number
from vitdense.seams import ask


class Shortcut(NamedTuple):
    keys: tuple[str, ...]  # of --cfg-options: what it sets, and other names of the same
    help: str
    read: Callable[[str], float] = whole_number


SHORTCUTS = {
    "epochs": Shortcut(
        ("settings.max_epochs", "train_cfg.max_epochs"),
        "length of the run, if the config counts epochs; its schedule follows",
    ),
    "iters": Shortcut(
        ("settings.max_iters", "train_cfg.max_iters"),
        "length of the run, if the config counts iterations; its schedule follows",
    ),
    "batch-size": Shortcut(("train_dataloader.batch_size",), "images per GPU and step; see --auto-scale-lr"),
    "total-batch-size": Shortcut(
        ("settings.total_batch_size",),
        "images per step of all GPUs, which share them out, also if their number changes",
    ),
    "lr": Shortcut(
        ("optim_wrapper.optimizer.lr",),
        "learning rate of the optimizer; factors of parts and schedules, and --auto-scale-lr, multiply it",
        above_zero,
    ),
    "image-size": Shortcut(
        ("settings.image_size",),
        "short side of a detector's images or of a segmentor's crops, in pixels; or height and width where all have "
        "one size; all sizes of the pipelines follow",
    ),
}


def main() -> None:
    parser = make_parser(__doc__, "vitdense train")
    add_run_arguments(parser, "train")
    for name, what in SHORTCUTS.items():
        number = {"nargs": "+", "metavar": ("N", "WIDTH")} if name == "image-size" else {"metavar": "N"}
        parser.add_argument(f"--{name}", type=what.read, **number, help=what.help)
        parser.sets(f"--{name}", *what.keys)
    parser.add_argument(
        "--log-to", nargs="+", choices=("tensorboard", "wandb"), help="also log to TensorBoard or Weights & Biases"
    )
    parser.add_argument("--print-config", action="store_true", help="check and print the config that would run")
    parser.apart("--epochs", "--iters")
    parser.apart("--batch-size", "--total-batch-size")
    parser.apart("--resume", "--overwrite", "--fresh")
    parser.sets("--resume", "resume", "load_from")
    parser.sets("--log-to", "settings.log_to")
    args = parser.parse_args()

    from vitdense.mm.config.load import config_of
    from vitdense.mm.console import exit_on_user_error
    from vitdense.mm.train.launch import prepare_training, train

    given = {option.keys[0]: getattr(args, name.replace("-", "_")) for name, option in SHORTCUTS.items()}
    given["settings.image_size"] = args.image_size[0] if len(args.image_size or ()) == 1 else args.image_size
    given["settings.log_to"] = args.log_to
    args.cfg_options |= {key: value for key, value in given.items() if value is not None}
    options = Asked.keywords("train", args)
    with exit_on_user_error():
        if (status := ask("train", "instead", args)) is not None:
            sys.exit(status)
        if args.print_config:
            with redirect_stdout(sys.stderr):  # stdout has the config alone
                cfg = config_of(args)
                prepare_training(cfg, **options)
            print(cfg.pretty_text)
        else:
            train(config_of(args), **options)


if __name__ == "__main__":
    in_utf8()
    main()
