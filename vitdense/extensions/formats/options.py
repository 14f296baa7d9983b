"""``--yolo`` and ``--voc`` of `vitdense new detection`."""

import argparse
from importlib import import_module
from pathlib import Path

from vitdense.mm.errors import ConfigError

READERS = {"yolo": "read_yolo", "voc": "read_folder", "dota": "read_folder"}  # a module of each name has them
GIVEN = ("train", "val", "images", "val_images")  # options of COCO's files


def add_options(parser: argparse.ArgumentParser) -> None:
    text = "in place of --train, --val and --images: a YOLO data set, written as COCO's files beside NAME.py"
    parser.add_argument("--yolo", type=Path, metavar="DATA.yaml", help=text)
    parser.add_argument("--voc", type=Path, metavar="DIR", help="the same of a folder of Pascal VOC, boxes alone")


def annotations(args: argparse.Namespace) -> dict[str, tuple[dict, Path]] | None:
    """The content of a COCO file and the folder of its images, for each split; None without an option of `READERS`.
    With ``--val SHARE`` the training split alone.

    Raises:
        ConfigError: The files have faults, or options do not fit.
    """
    paths, found = {f"--{name}": vars(args).get(name) for name in READERS}, {}
    asked = [option for option, path in paths.items() if path is not None]
    if not asked:
        return None
    is_split = isinstance(args.val, float)
    if len(asked) > 1 or any(vars(args)[name] for name in GIVEN if not (is_split and name == "val")):
        raise ConfigError(f"{asked[0]}: got --train, --val, --images or another format as well; give {asked[0]} alone")

    from vitdense.mm.data.coco import CORNERS, corner_fault, four_corners
    from vitdense.mm.data.faults import Faults, refuse

    name, wrong = asked[0].removeprefix("--"), Faults()
    are_oriented = vars(args).get("oriented") or name == "dota"
    reader = getattr(import_module(f"vitdense.extensions.formats.{name}"), READERS[name])
    for split in ("train",) if is_split else ("train", "val"):
        content, folder, faults = reader(paths[asked[0]], split)
        for one in content["annotations"]:
            place = one.pop("place", one["id"])
            if are_oriented and not one["iscrowd"] and (what := corner_fault(four_corners(one))):
                wrong.add(what, place, fix=CORNERS)
        refuse(fault.within(asked[0]) for fault in (*faults, *wrong))
        found[split] = content, folder
    return found
