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


def annotations(args: argparse.Namespace) -> dict[str, tuple[dict, Path]] | None:
    """The content of a COCO file and the folder of its images, for each split; None without ``--dota``.

    Raises:
        ConfigError: The files have faults, or options do not fit.
    """
    if args.dota is None:
        return None
    is_split = isinstance(args.val, float)
    if args.train or args.images or args.val_images or (args.val and not is_split):
        raise ConfigError("--dota: got --train, --val, --images or another format as well; give --dota alone")

    from vitdense.extensions.oriented.dota import read_folder
    from vitdense.mm.data.faults import refuse

    found = {}
    for split in ("train",) if is_split else ("train", "val"):
        content, folder, faults = read_folder(args.dota, split)
        refuse(fault.within("--dota") for fault in faults)
        found[split] = content, folder
    return found


def labels(args: argparse.Namespace) -> "Labels | None":
    """Oriented boxes; None without the option. A ConfigError if other options do not fit."""
    if not (args.oriented or args.dota):
        return None

    from vitdense.mm.config.own_data import Labels

    if not args.base and (args.method or "rfdetr") != "rfdetr":
        raise ConfigError(f"--oriented: got --method {args.method}, expected rfdetr, or --base")
    if args.masks or args.boxes:
        raise ConfigError("--masks, --boxes, --oriented: got several; leave all but one out")
    if args.dota and (vars(args).get("yolo") or vars(args).get("voc")):
        raise ConfigError("--dota: got --yolo or --voc too; give one of them")
    if not args.base:
        args.method = "rfdetr"
    return Labels("rfdetr_oriented_s_dota", "vitdense.OrientedDataset", fresh=(SHAPES,))
