"""`vitdense new detection --oriented`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitdense.mm.config.own_data import Labels

SHAPES = r"bbox_head\.(shape|first_shapes)\..+"  # what other models do not have


def add_options(parser: argparse.ArgumentParser) -> None:
    text = "of rfdetr: oriented boxes, of polygons of four points or attributes.rotation; also with --yolo"
    parser.add_argument("--oriented", action="store_true", help=text)
    text = "the same in place of --train, --val and --images: a folder of DOTA, written as COCO's files"
    parser.add_argument("--dota", type=Path, metavar="DIR", help=text)


def labels(args: argparse.Namespace) -> "Labels | None":
    """Oriented boxes; None without the option."""
    if not (args.oriented or args.dota):
        return None

    from vitdense.mm.config.own_data import Labels

    option = "--oriented" if args.oriented else "--dota"
    return Labels(option, "rfdetr_oriented_s_dota", "vitdense.OrientedDataset", fresh=(SHAPES,))
