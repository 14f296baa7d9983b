"""A config for a user's own data, based on a recipe: reads the data and writes the text."""

import argparse
import math
import os
import shlex
import statistics
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import DATASETS

from vitdense.mm.config.arguments import names
from vitdense.mm.config.classes import follows
from vitdense.mm.config.files import CONFIGS, find_config
from vitdense.mm.config.limits import as_options, raised_limits
from vitdense.mm.config.model_index import find_published
from vitdense.mm.config.print import Name, check_new_file, code, docstring
from vitdense.mm.config.query import class_heads, find_class, has_one_size, image_size, row_of_weights
from vitdense.mm.config.recipes import DETECTORS, EPOCHS, FINETUNE, ITERS, PANOPTIC, SEGMENTORS
from vitdense.mm.console import result_commands
from vitdense.mm.data import coco, panoptic
from vitdense.mm.data.classes import names_faults
from vitdense.mm.data.faults import Samples, refuse
from vitdense.mm.data.images import FILES_READ, SUFFIXES, evenly_spaced, header_size
from vitdense.mm.data.split import split_images
from vitdense.mm.errors import ConfigError, join_some
from vitdense.seams import ask, kind_of

TYPES = {"detection": "CocoDataset", "panoptic": "vitdense.PanopticDataset"}  # data sets of tasks
CLASS_HEADS = r"bbox_head\.(selections\.\d+\.)?classes\..+"  # RF-DETR's, not loaded for other classes than COCO's


@dataclass(frozen=True)
class Labels:
    """A kind of labels of an extension, for a detector."""

    option: str  # that asks for them
    recipe: str  # name
    dataset: str  # type of the data sets
    options: Mapping[str, Any] = field(default_factory=dict)  # other values of the config, by dotted keys
    fresh: tuple[str, ...] = ()  # regular expressions of parameters that are initialised, not loaded
    in_tiles: bool = True  # whether results in tiles are joined


@dataclass(frozen=True)
class Wrapped:
    """A wrapper of the training set by an extension, whose images are squares, parts of the images."""

    dataset: Mapping[str, Any]  # the wrapper's config, without the data set inside
    config: Mapping[str, Any]  # other keys of the config
    side: int  # of the squares, in pixels
    densest: int  # most objects in a square


@dataclass(frozen=True)
class Data:
    """What a config says about its data."""

    line: str  # the task and the data in a line
    root: str  # common folder
    short_side: int  # median of the training images, in pixels
    ratio: float  # of width to height, if the training images share one, else 1
    shared: Mapping[str, Any]  # arguments of both data sets
    train: Mapping[str, Any]  # further arguments of the training set
    val: Mapping[str, Any]
    densest: int = 0  # most objects in an image, for a detector
    written: Mapping[Path, Mapping] = field(default_factory=dict)  # annotation files to write
    images: Sequence[str] = ()  # paths for training


def read(args: argparse.Namespace) -> Data:
    return (_label_maps if args.task == "segmentation" else _annotated)(args)


def _annotated(args: argparse.Namespace) -> Data:
    is_panoptic, written = args.task == "panoptic", {}
    others = None if is_panoptic else ask("new detection", "annotations", args)
    if not (others or is_panoptic or (args.train and args.val and args.images)):
        raise ConfigError("expected --train, --val and --images, or an option for another format")
    reader = panoptic if is_panoptic else coco
    for split in () if others else ("train", "val"):
        if isinstance(path := vars(args)[split], Path) and not path.is_file():
            raise ConfigError(f"--{split}: {path} is not a file; --val may be a share of the images, such as 0.2")
    if isinstance(args.val, float):
        if args.val_images or vars(args).get("val_segments"):
            raise ConfigError(f"--val {args.val}: got a folder for validation too; its images are of the training's")
        content, folder = others["train"] if others else (reader.read(args.train), args.images)
        others = {split: (part, folder) for split, part in zip(("train", "val"), split_images(content, args.val))}
    source = args.train and args.train.absolute()
    for split, (content, folder) in (others or {}).items():
        path = args.out.with_name(f"{args.out.stem}_{split}.json")
        if path.absolute() == source:
            raise ConfigError(f"NAME.py: got {args.out}, beside which {path} would be replaced; choose another name")
        check_new_file(path, args.force, ".json")
        written[path] = content
        vars(args).update({split: path, "images" if split == "train" else "val_images": folder})
    files = {"train": args.train, "val": args.val}
    folders = {"img": {"train": args.images, "val": args.val_images or args.images}}
    if is_panoptic:
        folders["seg"] = {"train": args.segments, "val": args.val_segments or args.segments}
    found: dict[str, Samples] = {}
    for split, path in files.items():
        one = found[split] = reader.examine(written[path] if written else reader.read(path))
        if one.without_mask and not (is_panoptic or args.boxes or args.base):
            raise ConfigError(
                f"--{split}: {len(one.without_mask)} of {sum(one.counts.values())} annotations of {path} have no "
                f"'segmentation' (ids {join_some(one.without_mask)}); remove them or add masks, or give --boxes to "
                f"train on boxes alone"
            )
    all_folders = [folder for of_split in folders.values() for folder in of_split.values()]
    root = _common_folder(*all_folders, *(path.parent for path in files.values()))
    own = {}
    for split, path in files.items():
        prefix = {key: _below(of[split], root) for key, of in folders.items()}
        own[split] = {"ann_file": _below(path, root), "data_prefix": prefix}
    classes, sizes = tuple(found["train"].counts), list(found["train"].sizes.values())
    shared = {} if is_panoptic else {"metainfo": {"classes": classes}}
    densest = 0 if is_panoptic else max(one.densest for one in found.values())
    line = describe("Panoptic segmentation" if is_panoptic else "Detection", classes, sizes, found["val"].sizes)
    images = [os.path.join(args.images, name) for name in found["train"].sizes]
    return Data(line, root, *_sides(sizes), shared, **own, images=images, densest=densest, written=written)


def _label_maps(args: argparse.Namespace) -> Data:
    classes, splits = tuple(filter(None, names(args.classes))), {"train": "", "val": "val_"}
    refuse(fault.within("--classes") for fault in names_faults(classes))
    if len(classes) < 2:
        raise ConfigError(f"--classes: got {args.classes!r}, expected a file or two or more names, a,b,c")
    folders = {split: (vars(args)[f"{key}images"], vars(args)[f"{key}labels"]) for split, key in splits.items()}
    for folder in (*folders["train"], *folders["val"]):
        if not folder.is_dir():
            raise ConfigError(f"{folder} is not a folder; expected one of images or of label maps")
    suffixes = [_suffix(args.images, "--image-suffix", args.image_suffix)]
    suffixes += [_suffix(args.labels, "--label-suffix", args.label_suffix)]
    root = _common_folder(*folders["train"], *folders["val"])
    files = {split: sorted(map(str, images.rglob(f"*{suffixes[0]}"))) for split, (images, _) in folders.items()}
    sizes = [header_size(path, stored=False) for path in evenly_spaced(files["train"], FILES_READ)]
    sizes = [size for size in sizes if size]
    if not sizes:
        raise ConfigError(f"--images: {args.images} has no image that can be read and ends with {suffixes[0]}")
    own = {
        split: {"data_prefix": dict(zip(("img_path", "seg_map_path"), (_below(one, root) for one in of)))}
        for split, of in folders.items()
    }
    shared = {"type": "BaseSegDataset", "metainfo": {"classes": classes}}
    shared |= dict(zip(("img_suffix", "seg_map_suffix"), suffixes), reduce_zero_label=args.reduce_zero_label)
    line = describe("Segmentation", classes, files["train"], files["val"])
    return Data(line, root, *_sides(sizes), shared, **own, images=files["train"])


def describe(task: str, classes: Sequence[str], train: Sized, val: Sized) -> str:
    images = f"images to train: {len(train)}, to validate: {len(val)}"
    return f"{task}, {len(classes)} classes ({join_some(classes)}); {images}."


def _sides(sizes: Sequence[tuple[int, int]]) -> tuple[int, float]:
    """The median of the short sides, and the ratio that nine of ten images have up to a tenth, else 1."""
    ratios = sorted(width / height for width, height in sizes)
    ratio = statistics.median_low(ratios)
    share = sum(0.9 < one / ratio < 1 / 0.9 for one in ratios) / len(ratios)
    return round(statistics.median(map(min, sizes))), ratio if share >= 0.9 else 1.0


def _suffix(folder: Path, option: str, given: str | None) -> str:
    kinds = {path.suffix for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES}
    if given is None and len(kinds) != 1:
        raise ConfigError(
            f"{option}: the images in {folder} end with {', '.join(sorted(kinds)) or 'nothing'}; mmseg takes one "
            f"suffix: convert them, or give the one to use"
        )
    return given or next(iter(kinds))


def _common_folder(*paths: Path) -> str:
    common = Path(os.path.commonpath([os.path.abspath(path) for path in paths]))
    return os.path.join(common.relative_to(Path.cwd()) if common.is_relative_to(Path.cwd()) else common, "")


def _below(path: Path, root: str) -> str:
    return Path(os.path.relpath(path, root)).as_posix()


def config_text(args: argparse.Namespace, data: Data) -> str:
    if args.base is not None and (vars(args).get("backbone") or vars(args).get("method") or vars(args).get("head")):
        raise ConfigError("--base: got --backbone, --method or --head as well; the base config decides these")
    base = find_config(args.base or _recipe(args))
    cfg, labels = Config.fromfile(base), vars(args).get("label_kind")
    if args.base is not None:
        _check_base(cfg, args, labels)
    is_rfdetr = vars(args).get("method") == "rfdetr"
    limits, wrapped = raised_limits(cfg, data.densest), None
    if args.task == "detection" and (wrapped := ask("new detection", "wrapped", args, data)):
        data = replace(data, short_side=wrapped.side, ratio=1.0)
        limits = raised_limits(cfg, data.densest, wrapped.densest)
    if limits:
        print(f"an image has {data.densest} objects; limits of the recipe are raised: {as_options(limits)}")
    model = ask("new", "model", cfg, args) or {}
    if is_rfdetr:  # loaded as a whole
        model = {"backbone": {"init_cfg": None}}
    if args.finetune:
        model = {**model, "backbone": {**model.get("backbone", {}), **FINETUNE[args.finetune]}}
    trunk = {**cfg.model.backbone, **model.get("backbone", {})}
    read, of_images, left_out = ask("new", "images", args, cfg, trunk, data.images) or (None, {}, [])
    settings = _length(cfg, args, base)
    if args.base is None:
        settings |= _sizes(cfg, args, data, trunk, limits)
    changed = Config({"model": model})
    changed.merge_from_dict({**limits, **(labels.options if labels else {}), **_of_other_data(cfg, data), **of_images})
    model, evaluator = (changed.to_dict().get(key, {}) for key in ("model", "val_evaluator"))
    lines = [docstring(data.line, commands(args.out)), ""]
    lines += [f"_base_ = {code(_base_path(base))}", "", f"data_root = {code(data.root)}"]
    if settings:
        lines.append(f"settings = {code(settings)}  # schedules and sizes of the recipe follow")
    if model:
        reason = f"  # up to {data.densest} objects in an image" if limits else ""
        lines.append(f"model = {code(model, prefix=8)}{reason}")
    if is_rfdetr:
        weights = args.weights or cfg.get("load_from") or find_published(base.stem).address
        lines.append(f"load_from = {code(weights)}")
        patterns = [CLASS_HEADS, *(labels.fresh if labels else ())]
        fresh = {"exact_load": {"fresh": [Name(f'r"{pattern}"') for pattern in patterns]}}
        fresh["exact_load"] |= {"channels": "mean"} if read else {}
        lines.append(f"default_hooks = {code(fresh)}  # the rest is from COCO")
    kind = labels.dataset if labels else TYPES.get(args.task)
    lines += _data_lines(cfg, data, kind, read, left_out, wrapped)
    if evaluator:
        lines += [f"val_evaluator = {code(evaluator)}", "test_evaluator = val_evaluator"]
    lines += [f"{key} = {code(value)}" for key, value in wrapped.config.items()] if wrapped else []
    return "\n".join(lines) + "\n"


def _data_lines(
    cfg: Config, data: Data, kind: str | None, read: dict | None, left_out: Sequence[str], wrapped: Wrapped | None
) -> list[str]:
    """The lines of the data sets, of a `kind` or the base's; steps `left_out` cannot take what `read` reads."""
    shared: dict[str, Any] = {**data.shared, "data_root": Name("data_root")}
    if "metainfo" in cfg.train_dataloader.dataset and "metainfo" in data.shared:  # classes and colours of other data
        shared["metainfo"] = {"_delete_": True, **data.shared["metainfo"]}
    lines = [f"dataset = {code(shared, prefix=10)}"]
    if read:
        lines.append(f"read = {code(read, prefix=7)}")
    for split, part in (("train", data.train), ("val", data.val)):
        dataset = {"": Name("dataset"), **part, **_replacing(cfg, split, kind)}
        if read:
            steps = f"for step in _base_.{split}_dataloader.dataset.pipeline"
            steps += f" if step.type not in {code(left_out)}" if left_out else ""
            dataset["pipeline"] = Name(f'[read if "LoadImage" in step.type else step {steps}]')
        if wrapped and split == "train":
            dataset = _within(wrapped, dataset, data.shared)
        lines.append(f"{split}_dataloader = {code({'dataset': dataset}, prefix=19)}")
    return [*lines, "test_dataloader = val_dataloader", f"del dataset{', read' if read else ''}"]


def _within(wrapped: Wrapped, dataset: dict[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a data set in a wrapper, whole, for it inherits nothing from the base's data set."""
    inside = {**dataset, "metainfo": shared["metainfo"]}
    if not inside.pop("_delete_", False):
        inside[""] = Name("{**_base_.train_dataloader.dataset, **dataset}")
    return {"_delete_": True, **wrapped.dataset, "dataset": inside}


def _length(cfg: Config, args: argparse.Namespace, base: Path) -> dict[str, int]:
    by_epoch = "max_epochs" in cfg.train_cfg
    unit, other = ("epochs", "iters") if by_epoch else ("iters", "epochs")
    if getattr(args, other) is not None:
        raise ConfigError(f"--{other}: {base} counts {unit}; give --{unit}")
    length = args.epochs or args.iters or (None if args.base else EPOCHS if by_epoch else ITERS)
    return {f"max_{unit}": length} if length else {}


def _sizes(cfg: Config, args: argparse.Namespace, data: Data, trunk: Mapping, limits: Mapping) -> dict[str, Any]:
    """The setting `image_size`, if it is not the recipe's: a rectangle where all images have one size, as the data."""
    old = min(image_size(cfg))
    size = _side(cfg, args, data, trunk, limits, old)
    if has_one_size(cfg) and args.task != "segmentation":
        fewest = 1.0 if limits else 0.9  # of the square's positions, which the raised number of queries needs
        rectangle = _rectangle(size, data.ratio, cfg.model.data_preprocessor.pad_size_divisor, fewest)
        if rectangle != (size, size):
            print(f"width / height of images: {data.ratio:.3g}; image_size={rectangle}, at the cost of {size}x{size}")
            return {"image_size": rectangle}
    return {} if size == old else {"image_size": size}


def _rectangle(side: int, ratio: float, step: int, fewest: float) -> tuple[int, int]:
    """The multiples (h, w) of `step` nearest to a ratio of width to height, in the area of a square, or at least this
    share of it."""
    area = (side // step) ** 2
    pairs = [(h, area // h) for h in range(2, area // 2 + 1) if h * (area // h) >= fewest * area]
    h, w = min(pairs, key=lambda pair: abs(math.log(pair[1] / pair[0] / ratio)))
    return h * step, w * step


def _side(cfg: Config, args: argparse.Namespace, data: Data, trunk: Mapping, limits: Mapping, old: int) -> int:
    """The image size of the recipe, or less for smaller images, in whole patches or windows."""
    # Detectors enlarge COCO, whose median short side is 480 pixels, to 800.
    side = min(data.short_side * 5 // 3 if args.task == "detection" else data.short_side, old)
    patch = trunk.get("patch_size") or getattr(row_of_weights(trunk), "patch_size", None)
    if patch and 32 % patch:  # such as patches of 14 pixels
        return -(-side // patch) * patch
    is_rfdetr = vars(args).get("method") == "rfdetr"
    step = cfg.model.data_preprocessor.pad_size_divisor if is_rfdetr else 32
    size = old if side == old else max(side // step, 2) * step
    if is_rfdetr and "model.bbox_head.num_queries" in limits:  # the map needs a position for every query
        rows = math.isqrt(limits["model.bbox_head.num_queries"] - 1) + 1
        size = max(size, -(-rows * cfg.model.bbox_head.get("stride", 16) // step) * step)
    return size


def _of_other_data(cfg: Config, data: Data) -> dict[str, Any]:
    """Values for the new data where a base, as in mmdet and mmseg, states facts of its own data; by dotted keys."""
    evaluator, changed = cfg.get("val_evaluator"), {}
    if isinstance(evaluator, Mapping) and "ann_file" in evaluator and "ann_file" in data.val:
        changed["val_evaluator.ann_file"] = Name(f"data_root + {code(data.val['ann_file'])}")
    number = len(data.shared.get("metainfo", {}).get("classes", ()))
    for path, head in class_heads(cfg.model) if number else ():
        weights = "class_weight" in head.get("loss_cls", {})  # as in Mask2Former
        if head.get("num_classes") in (None, number) or (follows(head, cfg) and not weights):
            continue
        parent, _, last = path.rpartition(".")
        if last.isdigit():  # a config inherits lists whole
            changed.setdefault(parent, []).append({**head, "num_classes": number})
            continue
        changed[f"{path}.num_classes"] = number
        if weights:
            changed[f"{path}.loss_cls.class_weight"] = Name(f"[1.0] * {number} + [0.1]")  # the last: no object
    return changed


def _replacing(cfg: Config, split: str, own: str | None) -> dict[str, Any]:
    """Options of a data set of the type `own` that replaces the base's, which may have other arguments."""
    dataset = cfg[f"{split}_dataloader"].dataset
    if dataset.type == own if own else "draw" not in dataset:
        return {}
    kind = {"type": own} if own else {}
    replacing = {"_delete_": True, **kind, "pipeline": Name(f"_base_.{split}_dataloader.dataset.pipeline")}
    return replacing if split == "train" else {**replacing, "test_mode": True}


def _recipe(args: argparse.Namespace) -> str:
    if args.task != "detection":
        return PANOPTIC if args.task == "panoptic" else SEGMENTORS[args.head or "upernet"]
    labels = vars(args).get("label_kind")
    return labels.recipe if labels else DETECTORS[args.method, args.boxes]


def _check_base(cfg: Config, args: argparse.Namespace, labels: Labels | None) -> None:
    scope = "mmseg" if args.task == "segmentation" else "mmdet"
    if cfg.get("default_scope") != scope:
        raise ConfigError(f"--base: {args.base} has default_scope {cfg.get('default_scope')!r}, expected {scope!r}")
    for split in ("train", "val"):
        if "pipeline" not in cfg[f"{split}_dataloader"].dataset:
            raise ConfigError(f"--base: {split}_dataloader.dataset of {args.base} is a wrapper; name the one inside it")
    kind, wanted = cfg.train_dataloader.dataset.type, labels.dataset if labels else "CocoDataset"
    if len({kind_of(find_class(DATASETS, name, cfg)) for name in (kind, wanted)}) > 1:
        raise ConfigError(
            f"--base: {args.base} is for labels of {kind}, expected {wanted}, or the option for its labels"
        )
    if getattr(args, "boxes", False) and (cfg.model.get("roi_head") or {}).get("mask_head"):
        recipe = DETECTORS["cascade", True]
        raise ConfigError(f"--boxes: {args.base} has a mask head; start from a config without one, such as {recipe}")


def _base_path(base: Path) -> str:
    """A recipe's path by its package, so that it is valid on another machine; another config's absolute path."""
    base = base.resolve()
    is_recipe = base.is_relative_to(CONFIGS)
    return f"vitdense::configs/{base.relative_to(CONFIGS).as_posix()}" if is_recipe else base.as_posix()


def commands(config: Path) -> list[str]:
    training = f"vitdense train {shlex.quote(str(config))} --auto-scale-lr"
    return [training, *result_commands(str(config), f"work_dirs/{config.stem}")]
