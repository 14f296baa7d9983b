"""`vitdense new`: write a config for your own data.

It reads classes and image sizes from the data, and starts from a recipe in configs/. The file is short and could be
written by hand.
"""

import argparse
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from vitdense.files import atomic_write
from vitdense.mm.config.arguments import Parser, whole_number
from vitdense.mm.config.recipes import EPOCHS, FINETUNE, ITERS, SEGMENTORS, SMALL
from vitdense.mm.errors import ConfigError
from vitdense.seams import ask, call

MIN_MEMORY = 8e9  # least bytes of a GPU for a cascade


def main(argv: Sequence[str]) -> int:
    args = _parser().parse_args(argv)

    from vitdense.mm.checks.report import report
    from vitdense.mm.config.load import load_config
    from vitdense.mm.config.own_data import commands, config_text, read
    from vitdense.mm.config.print import check_new_file
    from vitdense.mm.console import exit_on_user_error

    with exit_on_user_error():
        check_new_file(args.out, args.force)
        if args.task == "detection":
            args.label_kind = ask("new detection", "labels", args)
            set_method(args)
        data = read(args)
        _write(args.out, config_text(args, data), data.written)
        if status := report(load_config(args.out), trains=False):
            print(f"\nThe errors stop a training. After mending: vitdense check {shlex.quote(str(args.out))}")
            return status
        print(f"\nvitdense check {shlex.quote(str(args.out))}  # seconds and memory of a step")
        print(*commands(args.out), sep="\n")
    return 0


def _write(out: Path, text: str, annotations: Mapping[Path, Mapping]) -> None:
    for path, content in (*((path, json.dumps(one)) for path, one in annotations.items()), (out, text)):
        with atomic_write(path) as scratch:
            scratch.write_text(content, encoding="utf-8")
        print(f"wrote {path}")
    print(f"\n{text}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = Parser("vitdense new", description=__doc__)
    tasks = parser.add_subparsers(title="tasks", dest="task", required=True)
    json_file, folder = {"type": Path, "metavar": "FILE.json"}, {"type": Path, "metavar": "DIR"}
    val = {"type": file_or_share, "metavar": "FILE.json", "help": "validation annotations, or a share: 0.2 of --train"}
    rfdetr = "default: cascade; rfdetr where there is no GPU of 8 GB: all its weights but the classes are from COCO"
    weights = "of rfdetr: a file of its authors or of transformers; by default downloaded"
    add = tasks.add_parser("detection", help="boxes and masks: annotations in COCO format").add_argument
    add("--train", **json_file, help="training annotations")
    add("--val", **val)
    add("--method", choices=("cascade", "mask_rcnn", "rfdetr"), help=rfdetr)
    add("--boxes", action="store_true", help="train on boxes alone, as where annotations have no mask")
    add("--masks", action="store_true", help="of rfdetr, which otherwise trains on boxes alone")
    add("--weights", metavar="FILE", help=weights)
    call("new detection", "add_options", tasks.choices["detection"])
    add = tasks.add_parser("segmentation", help="label maps: images of class indices").add_argument
    add("--head", choices=SEGMENTORS, help="default: upernet; linear and dpt are on plain ViTs")
    add("--labels", required=True, **folder, help="label maps")
    add("--val-labels", required=True, **folder, help="label maps for validation")
    add("--classes", required=True, help="names a,b,c, or a file with a name per line")
    add("--image-suffix", metavar="SUFFIX", help="end of the names of images: .jpg")
    add("--label-suffix", metavar="SUFFIX", help="end of the names of label maps: _labels.png")
    add("--reduce-zero-label", action="store_true", help="0 means unlabelled; classes start at 1")
    segments = "things and stuff: COCO panoptic JSON, and PNGs of the ids of segments"
    add = tasks.add_parser("panoptic", help=segments).add_argument
    add("--train", required=True, **json_file, help="training annotations")
    add("--val", required=True, **val)
    add("--segments", required=True, **folder, help="PNGs, named as the images")
    add("--val-segments", **folder, help="PNGs for validation; by default those of --segments")
    others = "images for validation; but for segmentation, by default those of --images"
    for name, task in tasks.choices.items():
        add = task.add_argument
        add("out", type=Path, metavar="NAME.py", help="the config to write")
        add("--images", required=name != "detection", **folder, help="folder of the images")
        add("--val-images", required=name == "segmentation", **folder, help=others)
        call("new", "add_options", task)
        add("--finetune", choices=FINETUNE, help="what trains of the backbone; default: the recipe's")
        base = f"start from this config, whatever its model: {SMALL[name]} is small"
        add("--base", type=Path, metavar="CONFIG", help=base)
        length = task.add_mutually_exclusive_group()
        length.add_argument("--epochs", type=whole_number, metavar="N", help=f"default for detection: {EPOCHS}")
        add("--no-estimate", action="store_true", help=argparse.SUPPRESS)  # of 0.3; now there is none
        length.add_argument("--iters", type=whole_number, metavar="N", help=f"default for others: {ITERS}")
        add("--force", action="store_true", help="overwrite NAME.py")
    return parser


def file_or_share(text: str) -> Path | float:
    """A file, or a number above 0 and below 1."""
    try:
        share = float(text)
    except ValueError:
        return Path(text)
    if not 0 < share < 1:
        raise argparse.ArgumentTypeError(f"got {text}, expected a file, or a share of the images such as 0.2")
    return share


def set_method(args: argparse.Namespace) -> None:
    """Set a detector's method and whether it trains on boxes only: as given, or by the memory of the machine."""
    if kind := vars(args).get("label_kind"):
        if args.masks or args.boxes:
            raise ConfigError(f"{kind.option}: got --masks or --boxes as well; leave all but one out")
        if not args.base:
            if args.method not in (None, "rfdetr"):
                raise ConfigError(f"{kind.option}: got --method {args.method}, expected rfdetr, or --base")
            args.method = "rfdetr"
    if not args.method and not args.base:
        args.method = "cascade" if vars(args).get("backbone") or _gpu_memory() >= MIN_MEMORY else "rfdetr"
        if args.method == "rfdetr":
            print(
                "--method rfdetr, for there is no GPU of 8 GB; --masks adds masks, --method cascade is a larger model"
            )
    is_rfdetr = args.method == "rfdetr"
    if (args.masks or args.weights) and not is_rfdetr:
        raise ConfigError("--masks, --weights: they belong to --method rfdetr; leave them out")
    if args.masks and args.boxes:
        raise ConfigError("--masks, --boxes: got both; leave one out")
    if is_rfdetr and vars(args).get("backbone"):
        raise ConfigError(
            "--backbone: rfdetr starts from whole models; for other trunks give --base rfdetr_deit_s_coco"
        )
    args.boxes = not args.masks if is_rfdetr else args.boxes


def _gpu_memory() -> int:
    import torch

    return torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else 0
