"""``vitdense new --backbone``."""

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmengine.config import Config


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--backbone", metavar="NAME", help="of vitdense.list_models(); default: the recipe's")


def model(cfg: "Config", args: argparse.Namespace) -> dict[str, Any] | None:
    """The changes of a recipe's model for the backbone that is asked for; None for its own."""
    from vitdense.extensions.swap.changes import model_changes

    return model_changes(cfg, args.backbone) if args.backbone else None
