"""`vitdense new detection --oriented`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from vitdense.mm.errors import ConfigError

if TYPE_CHECKING:
    from vitdense.mm.config.own_data import Labels

SHAPES = r"bbox_head\.(shape|first_shapes)\..+"  # what other models do not have


def add_options(parser: argparse.ArgumentParser) -> None:
    text = "of rfdetr: oriented boxes, of polygons of four points or attributes.rotation; also with --yolo"
    parser.add_argument("--oriented", action="store_true", help=text)
    text = "the same in place of --train, --val and --images: a folder of DOTA, written as COCO's files"
    parser.add_argument("--dota", type=Path, metavar="DIR", help=text)


def labels(args: argparse.Namespace) -> "Labels | None":
    """Oriented boxes; None without the option. A ConfigError if other options do not fit."""
    if not (args.oriented or args.dota):
        return None

    from vitdense.mm.config.own_data import Labels

    if not args.base and (args.method or "rfdetr") != "rfdetr":
        raise ConfigError(f"--oriented: got --method {args.method}, expected rfdetr, or --base")
    if args.masks or args.boxes:
        raise ConfigError("--masks, --boxes, --oriented: got several; leave all but one out")
    if not args.base:
        args.method = "rfdetr"
    return Labels("rfdetr_oriented_s_dota", "vitdense.OrientedDataset", fresh=(SHAPES,))
