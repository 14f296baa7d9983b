"""`python -m vitdense new`: write a config for your own data.

It reads classes and image sizes from the data, and starts from a recipe in configs/. The file is short, and everything
in it can be written by hand.
"""

import argparse
import glob
import json
import os
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from torchvision.datasets.folder import IMG_EXTENSIONS

from vitdense.files import atomic_write, read_text
from vitdense.mm.cli.check import report
from vitdense.mm.cli.estimate import estimate
from vitdense.mm.config.arguments import Parser, whole_number
from vitdense.mm.config.backbone import model_changes, row_of_weights
from vitdense.mm.config.classes import follows
from vitdense.mm.config.limits import as_options, raised_limits
from vitdense.mm.config.load import CONFIGS, find_config, load_config
from vitdense.mm.config.model_index import fetched, find_published
from vitdense.mm.config.print import Name, check_new_file, code, docstring
from vitdense.mm.config.query import class_heads
from vitdense.mm.config.settings import image_size
from vitdense.mm.console import command_line, exit_on_user_error, result_commands
from vitdense.mm.data.classes import names_faults
from vitdense.mm.data.coco import examine, read_coco
from vitdense.mm.data.faults import refuse
from vitdense.mm.data.images import FILES_READ, evenly_spaced, read_image_file
from vitdense.mm.data.panoptic import read_panoptic
from vitdense.mm.data.yolo import read_yolo
from vitdense.mm.errors import ConfigError, join_some

DETECTORS = {  # (method, boxes only) -> recipe
    ("cascade", False): "cascade_swin_t_coco",
    ("cascade", True): "cascade_rcnn_swin_t_coco",
    ("mask_rcnn", False): "mask_rcnn_swin_t_coco",
    ("mask_rcnn", True): "faster_rcnn_swin_t_coco",
    ("rfdetr", False): "rfdetr_seg_s_coco",
    ("rfdetr", True): "rfdetr_s_coco",
}
MIN_MEMORY = 8e9  # bytes of a GPU, with which a detector is a cascade
CLASS_HEADS = r"bbox_head\.(selections\.\d+\.)?classes\..+"  # of RF-DETR, of other classes than COCO's
SEGMENTORS = {  # head -> recipe
    "upernet": "upernet_swin_t_ade20k",
    "linear": "linear_dinov3_s_ade20k",
    "dpt": "dpt_dinov3_b_ade20k",
    "mask2former": "mask2former_swin_t_ade20k",
}
PANOPTIC = "eomt_dinov2_s_640_coco_panoptic"
SMALL = {
    "detection": "cascade_swin_nano_coco",
    "segmentation": "upernet_swin_nano_camvid",
    "panoptic": "eomt_nano_shapes",
}
FINETUNE = {  # options of the backbone
    "all": {"frozen_stages": -1, "finetune": None},
    "frozen": {"frozen_stages": "all", "finetune": None},
    "attention": {"frozen_stages": -1, "finetune": "attention"},
    "lora": {"frozen_stages": -1, "finetune": "lora"},
}
OMIT = {"type": "vitdense.OmitFrozenBackboneHook"}
EPOCHS, ITERS = 12, 20000  # of the two kinds of recipes


@dataclass(frozen=True)
class Data:
    """What a config says of its data.

    Attributes:
        line: The task and the data in a line.
        root: Their common folder.
        short_side: Median of the training images, in pixels.
        shared: Arguments of both data sets.
        train: Other arguments of the training set.
        val: Likewise.
        densest: Most objects of an image, of a detector's data.
        written: Annotation files to write, by their paths.
    """

    line: str
    root: str
    short_side: int
    shared: Mapping[str, Any]
    train: Mapping[str, Any]
    val: Mapping[str, Any]
    densest: int = 0
    written: Mapping[Path, Mapping] = field(default_factory=dict)


def main(argv: Sequence[str]) -> int:
    """The command; its exit status: 0, or 2 if the check finds errors."""
    args = _parser().parse_args(argv)
    with exit_on_user_error():
        check_new_file(args.out, args.force)
        data = read(args)
        text = config_text(args, data)
        for path, content in data.written.items():
            with atomic_write(path) as scratch:
                scratch.write_text(json.dumps(content), encoding="utf-8")
            print(f"wrote {path}")
        with atomic_write(args.out) as scratch:
            scratch.write_text(text, encoding="utf-8")  # as mmengine reads it
        print(f"wrote {args.out}\n\n{text}", flush=True)
        cfg = load_config(args.out)
        for option, weights in fetched(cfg).items():
            print(f"the training downloads {weights} once; without a network, give its file: {option}=FILE")
        status = report(cfg)
        if status:
            print(f"\nThe errors stop a training. After mending: python -m vitdense check {shlex.quote(str(args.out))}")
            return status
        if not args.no_estimate:
            print("measuring memory and time on three iterations, minutes on a CPU; --no-estimate does not", flush=True)
            print(estimate(args.out))
        print("", *commands(args.out), sep="\n")
    return status


def _parser() -> argparse.ArgumentParser:
    parser = Parser("python -m vitdense new", description=__doc__)
    tasks = parser.add_subparsers(title="tasks", dest="task", required=True)
    detection = tasks.add_parser("detection", help="annotations in COCO format, or a YOLO data set")
    detection.add_argument("--train", type=Path, metavar="FILE.json", help="training annotations")
    detection.add_argument("--val", type=Path, metavar="FILE.json", help="validation annotations")
    detection.add_argument(
        "--yolo",
        type=Path,
        metavar="DATA.yaml",
        help="in place of --train, --val and --images: these annotations are written as COCO's, beside NAME.py",
    )
    detection.add_argument(
        "--method",
        choices=("cascade", "mask_rcnn", "rfdetr"),
        help="default: cascade; rfdetr where there is no GPU of 8 GB: all its weights but the classes are from COCO",
    )
    detection.add_argument(
        "--boxes", action="store_true", help="train on boxes alone, as where annotations have no mask"
    )
    detection.add_argument("--masks", action="store_true", help="of rfdetr, which otherwise trains on boxes alone")
    detection.add_argument(
        "--weights", metavar="FILE", help="of rfdetr: a file of its authors or of transformers; by default downloaded"
    )
    segmentation = tasks.add_parser("segmentation", help="label maps: images of class indices")
    segmentation.add_argument("--head", choices=SEGMENTORS, help="default: upernet; linear and dpt are on plain ViTs")
    segmentation.add_argument("--labels", type=Path, required=True, metavar="DIR", help="label maps")
    segmentation.add_argument("--val-labels", type=Path, required=True, metavar="DIR", help="label maps for validation")
    segmentation.add_argument("--classes", required=True, help="names a,b,c, or a file with a name per line")
    segmentation.add_argument("--image-suffix", metavar="SUFFIX", help="end of the names of images: .jpg")
    segmentation.add_argument("--label-suffix", metavar="SUFFIX", help="end of the names of label maps: _labels.png")
    segmentation.add_argument("--reduce-zero-label", action="store_true", help="0 means unlabelled; classes start at 1")
    panoptic = tasks.add_parser(
        "panoptic", help="things and stuff: COCO panoptic JSON, and PNGs of the ids of segments"
    )
    panoptic.add_argument("--train", type=Path, required=True, metavar="FILE.json", help="training annotations")
    panoptic.add_argument("--val", type=Path, required=True, metavar="FILE.json", help="validation annotations")
    panoptic.add_argument("--segments", type=Path, required=True, metavar="DIR", help="PNGs, named as the images")
    panoptic.add_argument(
        "--val-segments", type=Path, metavar="DIR", help="PNGs for validation; by default those of --segments"
    )
    for name, task in (("detection", detection), ("segmentation", segmentation), ("panoptic", panoptic)):
        task.add_argument("out", type=Path, metavar="NAME.py", help="the config to write")
        task.add_argument(
            "--images", type=Path, required=task is not detection, metavar="DIR", help="folder of the images"
        )
        task.add_argument(
            "--val-images",
            type=Path,
            required=task is segmentation,
            metavar="DIR",
            help="images for validation; but for segmentation, by default those of --images",
        )
        task.add_argument("--backbone", metavar="NAME", help="of vitdense.list_models(); default: the recipe's")
        task.add_argument("--finetune", choices=FINETUNE, help="what trains of the backbone; default: the recipe's")
        task.add_argument(
            "--base",
            type=Path,
            metavar="CONFIG",
            help=f"start from this config, whatever its model: {SMALL[name]} is small",
        )
        length = task.add_mutually_exclusive_group()
        length.add_argument("--epochs", type=whole_number, metavar="N", help=f"default for detection: {EPOCHS}")
        length.add_argument("--iters", type=whole_number, metavar="N", help=f"default for others: {ITERS}")
        task.add_argument("--force", action="store_true", help="overwrite NAME.py")
        task.add_argument("--no-estimate", action="store_true", help="do not measure memory and time")
    return parser


def _set_method(args: argparse.Namespace) -> None:
    """Set the method of a detector, and whether it trains on boxes alone: as given, or as the machine can train.

    Raises:
        ConfigError: Options contradict each other.
    """
    if not args.method and not args.base:
        args.method = "cascade" if args.backbone or _gpu_memory() >= MIN_MEMORY else "rfdetr"
        if args.method == "rfdetr":
            print(
                "--method rfdetr, for there is no GPU of 8 GB; --masks adds masks, --method cascade is a larger model"
            )
    is_rfdetr = args.method == "rfdetr"
    if (args.masks or args.weights) and not is_rfdetr:
        raise ConfigError("--masks, --weights: they belong to --method rfdetr; leave them out")
    if args.masks and args.boxes:
        raise ConfigError("--masks, --boxes: got both; leave one of them out")
    if is_rfdetr and args.backbone:
        raise ConfigError(
            "--backbone: rfdetr starts from whole models; for other trunks give --base rfdetr_deit_s_coco"
        )
    args.boxes = not args.masks if is_rfdetr else args.boxes
    given = [args.train, args.val, args.images]
    if any([*given, args.val_images]) if args.yolo else not all(given):
        raise ConfigError("expected --train, --val and --images, or --yolo alone")


def _gpu_memory() -> int:
    """In bytes; 0 where there is no GPU."""
    return torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else 0


def read(args: argparse.Namespace) -> Data:
    """Read the data that the options name."""
    if args.task == "detection":
        _set_method(args)
    return (_segmentation if args.task == "segmentation" else _annotated)(args)


def _annotated(args: argparse.Namespace) -> Data:
    """Read annotations of instances, or of panoptic segments, whose PNGs the check looks at."""
    is_panoptic, written = args.task == "panoptic", {}
    if getattr(args, "yolo", None):
        for split, images in (("train", "images"), ("val", "val_images")):
            content, folder, faults = read_yolo(args.yolo, split)
            refuse(fault.within("--yolo") for fault in faults)
            path = args.out.with_name(f"{args.out.stem}_{split}.json")
            check_new_file(path, args.force, ".json")
            written[path] = content
            setattr(args, split, path)
            setattr(args, images, folder)
    files = {"train": args.train, "val": args.val}
    for split, path in files.items():
        if not written and not path.is_file():
            raise ConfigError(f"--{split}: {path} is not a file")
    read = read_panoptic if is_panoptic else read_coco
    found = {split: examine(written[path]) if written else read(path) for split, path in files.items()}
    folders = {"img": {"train": args.images, "val": args.val_images or args.images}}
    if is_panoptic:
        folders["seg"] = {"train": args.segments, "val": args.val_segments or args.segments}
    for split, option in (("train", ""), ("val", "val-")):
        name = found[split].images[0]["file_name"]
        _check_folder(f"--{option}images", folders["img"][split], name)
        if is_panoptic:
            _check_folder(f"--{option}segments", folders["seg"][split], str(Path(name).with_suffix(".png")))
        elif (without := found[split].without_mask) and not args.boxes and args.base is None:
            raise ConfigError(
                f"--{split}: {len(without)} of {len(found[split].objects)} annotations of {files[split]} have no "
                f"'segmentation' (ids {join_some(without)}); remove them or add masks, or give --boxes to train on "
                f"boxes alone"
            )
    all_folders = [folder for of_split in folders.values() for folder in of_split.values()]
    root = _common_folder(*all_folders, *(path.parent for path in files.values()))
    train, val = (
        {"ann_file": _below(path, root), "data_prefix": {key: _below(of[split], root) for key, of in folders.items()}}
        for split, path in files.items()
    )
    classes = found["train"].names
    line = _line(
        "Panoptic segmentation" if is_panoptic else "Detection", classes, *(len(one.images) for one in found.values())
    )
    side = round(statistics.median(min(image["width"], image["height"]) for image in found["train"].images))
    if is_panoptic:
        return Data(line, root, side, {}, train, val)
    densest = max(one.densest for one in found.values())
    return Data(line, root, side, {"metainfo": {"classes": classes}}, train, val, densest, written)


def _check_folder(option: str, folder: Path, name: str) -> None:
    """Raise if an image is not where it should be, but in a folder below."""
    if (folder / name).exists() or Path(name).is_absolute():
        return
    if below := next(folder.rglob(glob.escape(name)), None):
        right = below.parents[len(Path(name).parts) - 1]
        raise ConfigError(f"{option}: {folder} has no {name}, but {right} has it; give {option} {right}")


def _segmentation(args: argparse.Namespace) -> Data:
    """Look at the folders."""
    classes = _class_names(args.classes)
    pairs = [(args.images, args.labels), (args.val_images, args.val_labels)]
    for folder in (folder for pair in pairs for folder in pair):
        if not folder.is_dir():
            raise ConfigError(f"{folder} is not a folder; expected one of images or of label maps")
    image_suffix = _suffix(args.images, "--image-suffix", args.image_suffix)
    label_suffix = _suffix(args.labels, "--label-suffix", args.label_suffix)
    root = _common_folder(*pairs[0], *pairs[1])
    files = [sorted(images.rglob(f"*{image_suffix}")) for images, _ in pairs]
    read = [read_image_file(str(path)) for path in evenly_spaced(files[0], FILES_READ)]
    sides = [min(file.loaded) for file in read if not file.error]
    if not sides:
        raise ConfigError(f"--images: {args.images} has no image that can be read and ends with {image_suffix}")
    parts = [
        {"data_prefix": {"img_path": _below(images, root), "seg_map_path": _below(labels, root)}}
        for images, labels in pairs
    ]
    shared = {
        "type": "BaseSegDataset",
        "metainfo": {"classes": classes},
        "img_suffix": image_suffix,
        "seg_map_suffix": label_suffix,
        "reduce_zero_label": args.reduce_zero_label,
    }
    line = _line("Segmentation", classes, *map(len, files))
    return Data(line, root, round(statistics.median(sides)), shared, *parts)


def _line(task: str, classes: Sequence[str], num_train: int, num_val: int) -> str:
    return f"{task}, {len(classes)} classes ({join_some(classes)}): {num_train} images to train, {num_val} to validate."


def _class_names(given: str) -> tuple[str, ...]:
    names = read_text(given).splitlines() if os.path.isfile(given) else given.split(",")
    names = tuple(name.strip() for name in names if name.strip())
    refuse(fault.within("--classes") for fault in names_faults(names))
    if len(names) < 2:
        raise ConfigError(f"--classes: got {given!r}, expected a file or two or more names, a,b,c")
    return names


def _suffix(folder: Path, option: str, given: str | None) -> str:
    """End of the file names in a folder: as given, or their one extension."""
    kinds = {path.suffix for path in folder.rglob("*") if path.suffix.lower() in IMG_EXTENSIONS}
    if given is None and len(kinds) != 1:
        raise ConfigError(
            f"{option}: the images in {folder} end with {', '.join(sorted(kinds)) or 'nothing'}; mmseg takes one "
            f"suffix: convert them, or give the one to use"
        )
    return given or next(iter(kinds))


def _common_folder(*paths: Path) -> str:
    """The lowest folder with all paths: relative, as configs name it, if it is below the working folder."""
    common = Path(os.path.commonpath([os.path.abspath(path) for path in paths]))
    return f"{common.relative_to(Path.cwd()) if common.is_relative_to(Path.cwd()) else common}/"


def _below(path: Path, root: str) -> str:
    return Path(os.path.relpath(path, root)).as_posix()


def config_text(args: argparse.Namespace, data: Data) -> str:
    """The text of a config.

    Raises:
        ConfigError: There is no such backbone or base config, they do not fit, or the recipes are not on this disk.
    """
    if args.base is not None and (args.backbone or vars(args).get("method") or vars(args).get("head")):
        raise ConfigError("--base: got --backbone, --method or --head as well; the base config decides these")
    base = find_config(args.base) if args.base else _recipe(args)
    cfg = Config.fromfile(base)
    if args.base is not None:
        _check_base(cfg, args)
    settings = {}
    by_epoch = "max_epochs" in cfg.train_cfg
    unit, other = ("epochs", "iters") if by_epoch else ("iters", "epochs")
    if getattr(args, other) is not None:
        raise ConfigError(f"--{other}: {base} counts {unit}; give --{unit}")
    length = args.epochs or args.iters or (None if args.base else EPOCHS if by_epoch else ITERS)
    if length:
        settings[f"max_{unit}"] = length
    # Detectors enlarge COCO, whose median short side is 480 pixels, to 800.
    side = data.short_side * 5 // 3 if args.task == "detection" else data.short_side
    is_rfdetr = vars(args).get("method") == "rfdetr"
    step = cfg.model.data_preprocessor.pad_size_divisor if is_rfdetr else 32  # whole windows
    if args.base is None and side < image_size(cfg):
        settings["image_size"] = max(side // step, 2) * step
    model = model_changes(cfg, args.backbone) if args.backbone else {}  # otherwise the recipe's
    if is_rfdetr:  # loaded as a whole
        model = {"backbone": {"init_cfg": None}}
    if args.finetune:
        model = {**model, "backbone": {**model.get("backbone", {}), **FINETUNE[args.finetune]}}
    backbone = {**cfg.model.backbone, **model.get("backbone", {})}
    patch = getattr(row_of_weights(backbone), "patch_size", None)
    if args.base is None and patch and 32 % patch:  # whole patches of 14 pixels
        settings["image_size"] = -(-min(side, image_size(cfg)) // patch) * patch
    limits = raised_limits(cfg, data.densest)
    changed = Config({"model": model})
    if limits:
        print(f"an image has {data.densest} objects; limits of the recipe are raised: {as_options(limits)}")
    changed.merge_from_dict({**limits, **_of_other_data(cfg, data)})
    model, evaluator = (changed.to_dict().get(key, {}) for key in ("model", "val_evaluator"))
    lines = [
        docstring(data.line, commands(args.out)),
        "",
        f"_base_ = {code(_base_path(base, args.out))}",
        "",
        f"data_root = {code(data.root)}",
    ]
    if settings:
        lines.append(f"settings = {code(settings)}  # schedules and sizes of the recipe follow")
    if model:
        reason = f"  # up to {data.densest} objects in an image" if limits else ""
        lines.append(f"model = {code(model, prefix=8)}{reason}")
    if is_rfdetr:
        lines.append(f"load_from = {code(args.weights or find_published(base.stem).address)}")
        fresh = {"exact_load": {"fresh": [Name(f'r"{CLASS_HEADS}"')]}}
        lines.append(f"default_hooks = {code(fresh)}  # everything but the classes is from COCO")
    if backbone.get("frozen_stages") == "all":
        base_hooks = "_base_.custom_hooks + " if cfg.get("custom_hooks") else ""
        lines.append(f"custom_hooks = {base_hooks}{code([OMIT])}  # checkpoints without the frozen backbone")
    shared: dict[str, Any] = {**data.shared, "data_root": Name("data_root")}
    if "metainfo" in cfg.train_dataloader.dataset and "metainfo" in data.shared:  # classes and colours of other data
        shared["metainfo"] = {"_delete_": True, **data.shared["metainfo"]}
    lines.append(f"dataset = {code(shared, prefix=10)}")
    for split, own in (("train", data.train), ("val", data.val)):
        dataset = {"": Name("dataset"), **own, **_replacing(cfg, split, args.task)}
        lines.append(f"{split}_dataloader = {code({'dataset': dataset}, prefix=19)}")
    lines += ["test_dataloader = val_dataloader", "del dataset"]
    if evaluator:
        lines += [f"val_evaluator = {code(evaluator)}", "test_evaluator = val_evaluator"]
    return "\n".join(lines) + "\n"


def _of_other_data(cfg: Config, data: Data) -> dict[str, Any]:
    """What a base states of its own data, as those of mmdet and mmseg do: values of the new data, by dotted keys."""
    evaluator, changed = cfg.get("val_evaluator"), {}
    if isinstance(evaluator, Mapping) and "ann_file" in evaluator and "ann_file" in data.val:
        changed["val_evaluator.ann_file"] = Name(f"data_root + {code(data.val['ann_file'])}")
    number = len(data.shared.get("metainfo", {}).get("classes", ()))
    for path, head in class_heads(cfg.model) if number else ():
        weights = "class_weight" in head.get("loss_cls", {})  # of Mask2Former
        if head.get("num_classes") in (None, number) or (follows(head, cfg) and not weights):
            continue
        parent, _, last = path.rpartition(".")
        if last.isdigit():  # a config inherits lists whole
            changed.setdefault(parent, []).append({**head, "num_classes": number})
            continue
        changed[f"{path}.num_classes"] = number
        if weights:
            changed[f"{path}.loss_cls.class_weight"] = Name(f"[1.0] * {number} + [0.1]")  # and no object
    return changed


def _replacing(cfg: Config, split: str, task: str) -> dict[str, Any]:
    """What a data set needs that takes the place of the base's, of a type with other arguments."""
    dataset = cfg[f"{split}_dataloader"].dataset
    own = {"detection": "CocoDataset", "panoptic": "vitdense.PanopticDataset"}.get(task)
    if dataset.type == own if own else "draw" not in dataset:
        return {}
    kind = {"type": own} if own else {}
    replacing = {"_delete_": True, **kind, "pipeline": Name(f"_base_.{split}_dataloader.dataset.pipeline")}
    return replacing if split == "train" else {**replacing, "test_mode": True}


def _recipe(args: argparse.Namespace) -> Path:
    """The recipe of the method, or of the head."""
    if args.task == "panoptic":
        name = PANOPTIC
    elif args.task == "detection":
        name = DETECTORS[args.method, args.boxes]
    else:
        name = SEGMENTORS[args.head or "upernet"]
    return CONFIGS / f"{name}.py"


def _check_base(cfg: Config, args: argparse.Namespace) -> None:
    """A base config must be of the task, with one data set of a type in each loader, and without masks for boxes."""
    scope = "mmseg" if args.task == "segmentation" else "mmdet"
    if cfg.get("default_scope") != scope:
        raise ConfigError(f"--base: {args.base} has default_scope {cfg.get('default_scope')!r}, expected {scope!r}")
    for split in ("train", "val"):
        if "pipeline" not in cfg[f"{split}_dataloader"].dataset:
            raise ConfigError(f"--base: {split}_dataloader.dataset of {args.base} is a wrapper; name the one inside it")
    if getattr(args, "boxes", False) and (cfg.model.get("roi_head") or {}).get("mask_head"):
        raise ConfigError(
            f"--boxes: {args.base} has a mask head; start from a config without one, such as "
            f"{DETECTORS['cascade', True]}"
        )


def _base_path(base: Path, out: Path) -> str:
    """The base config as the new one names it: by its path within a clone; a recipe of the package by the package, so
    that the file is good on another machine; else by its absolute path."""
    base, folder = base.resolve(), out.resolve().parent
    if base.is_relative_to(CONFIGS.parent) and folder.is_relative_to(CONFIGS.parent):
        return Path(os.path.relpath(base, folder)).as_posix()
    if base.is_relative_to(CONFIGS):
        return f"vitdense::configs/{base.relative_to(CONFIGS).as_posix()}"
    return base.as_posix()


def commands(config: Path) -> list[str]:
    """The commands for training, evaluation and prediction."""
    training = f"{command_line('train')} {shlex.quote(str(config))} --auto-scale-lr"
    return [training, *result_commands(str(config), f"work_dirs/{config.stem}")]
