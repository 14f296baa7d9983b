"""Checks of the data: files exist, classes meet by name, annotations and label maps are those that mm reads.

Labels that are off by one, or unlabelled pixels that are read as a class, silently train a wrong model.
"""

import inspect
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import DATASETS

from vitdense.files import atomic_write, sha256_of
from vitdense.mm.config.classes import (
    annotation_file,
    effective_classes,
    is_panoptic,
    model_classes,
    model_things,
    numbers_by_file,
    reads_coco,
)
from vitdense.mm.config.query import as_list, class_heads, find_class, leaf_datasets, loads_labels, nodes
from vitdense.mm.data.coco import Annotations, overview, read_coco
from vitdense.mm.data.faults import Fault, caught
from vitdense.mm.data.images import FILES_READ, keeps_orientation
from vitdense.mm.data.label_maps import UNLABELLED, LabelMaps, build_dataset, read_label_maps
from vitdense.mm.data.panoptic import read_panoptic
from vitdense.mm.errors import ConfigError, join_some

VERSION = 4  # of the faults of annotation files
VALUES_SHOWN = 20  # in a histogram


def datasets(cfg: Config, splits: Sequence[str]) -> Iterator[tuple[str, dict, type | None]]:
    """The name of the loader, the config and the class of every data set, without wrappers."""
    for split in splits:
        loader = cfg.get(f"{split}_dataloader")
        for dataset in leaf_datasets(loader.dataset) if loader else ():
            yield f"{split}_dataloader", dataset, find_class(DATASETS, dataset["type"], cfg)


def paths(dataset: dict, kind: type | None) -> Iterator[tuple[str, Path]]:
    """What a data set reads from the disk, and where: its annotation file and folders.

    Not of a data set that is drawn on demand, nor of a storage service (s3://), which is mmengine's.
    """
    root = str(dataset.get("data_root") or "")
    if kind is None or getattr(kind, "drawn_on_demand", False) or "://" in root:
        return
    if dataset.get("ann_file"):
        yield "annotation file", Path(root, dataset["ann_file"])
    for name, prefix in (dataset.get("data_prefix") or {}).items():
        if prefix is not None:
            yield f"folder ({name})", Path(root, prefix)


def is_on_disk(dataset: dict, kind: type | None) -> bool:
    """Whether all that a data set reads is here."""
    of_disk = list(paths(dataset, kind))
    return bool(of_disk) and all(path.exists() for _, path in of_disk)


def files(cfg: Config, splits: Sequence[str]) -> Iterator[Fault]:
    """The types of data sets are registered, their files and folders are on the disk."""
    for where, dataset, kind in datasets(cfg, splits):
        if kind is None:
            yield Fault(f"no data set of type {dataset['type']!r} is registered", where)
        root = Path(dataset.get("data_root") or "")
        for what, path in paths(dataset, kind):
            if not path.exists():
                yield Fault(
                    f"{what} {path} does not exist",
                    where,
                    fix=f"put the data set at {root} (or link it: ln -s /path/to/it {root}) or set its folder by "
                    f"--cfg-options data_root=/path/to/it",
                )


def classes(cfg: Config, splits: Sequence[str]) -> Iterator[Fault]:
    """The classes of the model against the heads, the data sets and their annotation files: all meet by name."""
    found = [(where, dataset, kind) for where, dataset, kind in datasets(cfg, splits) if kind is not None]
    yield from caught(_classes_of_heads, cfg)
    trained = [dataset for where, dataset, _ in found if where.startswith("train")]
    for where, dataset, kind in found:
        model, own = model_classes(cfg), effective_classes(dataset, kind)
        # `follow_classes` gives the model's to all that can have them.
        if None not in (model, own) and own != model:
            what = (
                f"got the classes {join_some(own)}, expected those of the model, which are those of the training data"
            )
            yield Fault(f"{what}: {join_some(model)}", where, fix="give the same class the same name in both")
        yield from _classes_of_file(where, dataset, kind, trained)


def _categories(dataset: dict) -> tuple[str, ...] | None:
    """Names in the annotation file of a data set; None if the file is absent or cannot be read: other checks say so."""
    ann_file = annotation_file(dataset)
    with suppress(ConfigError):
        return overview(Path(ann_file)).categories if ann_file and Path(ann_file).is_file() else None


def _classes_of_file(where: str, dataset: dict, kind: type, trained: Sequence[dict]) -> Iterator[Fault]:
    """The classes of a data set are categories of its annotation file. A validation may lack some."""
    names, own, ann_file = _categories(dataset), effective_classes(dataset, kind), annotation_file(dataset)
    if names is None or own is None:
        return
    if numbers_by_file(kind) and own != tuple(name for name in names if name in set(own)):
        yield Fault(
            f"{kind.__name__} numbers labels in the order of {ann_file}, {join_some(names)}; the model has "
            f"{join_some(own)}",
            where,
            fix="set type='vitdense.CocoDataset', which reads them by name",
        )
    elif absent := [name for name in own if name not in names]:
        anywhere = {name for part in trained for name in _categories(part) or ()}
        yield Fault(
            f"{ann_file} has no category {join_some(absent)} of the classes; it has {join_some(names)}",
            where,
            fix="give the same class the same name, or leave it out of metainfo",
            grave=len(absent) == len(own) or (where.startswith("train") and not set(absent) <= anywhere),
        )


def _classes_of_heads(cfg: Config) -> Iterator[Fault]:
    """Heads have the classes of the model, or its things alone: panoptic data also have classes of stuff. An RPN tells
    objects from background."""
    if (got := (cfg.model.get("rpn_head") or {}).get("num_classes", 1)) != 1:
        what = f"got {got}, expected 1, an object"
        yield Fault(what, "model.rpn_head.num_classes", fix="leave it out of your config")
    if (own := model_classes(cfg)) is None:
        return
    things, follow = model_things(cfg), "leave it out of your config: heads follow the data"
    for path, head in class_heads(cfg.model):
        if head.get("num_classes") not in (None, len(own), things):
            what = f"the data have {len(own)} classes, but {path}.num_classes is {head['num_classes']}"
            yield Fault(what, fix=f"set it to {len(own)}, or {follow}")
        number = head.get("num_classes") or len(own)
        for loss in nodes(head):
            weights = loss.get("class_weight")
            if isinstance(weights, (list, tuple)) and len(weights) not in (number, number + 1):
                yield Fault(
                    f"got {len(weights)} weights, expected one for each of {number} classes, and one more for the "
                    f"background of a softmax",
                    f"class_weight of {loss.get('type', 'a loss')} in {path}",
                )
    expected = {"num_things_classes": len(own) if things is None else things}
    expected["num_stuff_classes"] = len(own) - expected["num_things_classes"]
    for head in nodes(cfg.model):  # Mask2Former's
        for key, number in expected.items():
            if head.get(key, number) != number:
                weights = " and the class_weight of its loss_cls" if "class_weight" in head.get("loss_cls", {}) else ""
                yield Fault(
                    f"the data have {number} classes of {key.split('_')[1]}, but {key} of "
                    f"{head.get('type', 'a part of the model')} is {head[key]}",
                    fix=f"set it{weights} accordingly, or {follow}",
                )


def annotations(cfg: Config, splits: Sequence[str]) -> Iterator[Fault]:
    """Annotation files of COCO's formats are right. One process of a machine reads them, for all."""
    seen = set()
    for where, dataset, kind in datasets(cfg, splits):
        ann_file = annotation_file(dataset)
        if not is_on_disk(dataset, kind) or not ann_file or not (reads_coco(kind) or is_panoptic(kind)):
            continue
        if reads_coco(kind):
            yield from caught(masks, where, dataset)
        if ann_file in seen or int(os.environ.get("LOCAL_RANK", 0)):
            continue
        seen.add(ann_file)
        try:
            faults = [] if _passed(ann_file).exists() else read_annotations(dataset, kind).faults
            objects = overview(Path(ann_file)).annotations
        except ConfigError as error:
            yield Fault(str(error))
            continue
        if not objects:
            what = f"{ann_file} has no annotations: there is nothing to"
            is_training = where.startswith("train")
            yield Fault(f"{what} {'learn' if is_training else 'evaluate'}", where, grave=is_training)
        yield from (fault.within(f"{where}: {ann_file}") for fault in faults if fault.grave)


def _passed(ann_file: str) -> Path:
    """The mark of a file without grave faults, by its digest: to read a large file takes a while."""
    return Path(torch.hub.get_dir(), "vitdense", f"annotations-{VERSION}-{sha256_of(Path(ann_file))}")


def read_annotations(dataset: dict, kind: type, number: int | None = FILES_READ) -> Annotations:
    """The annotations of a data set. That they have no grave fault is remembered.

    Args:
        dataset: Its config.
        kind: Its class.
        number: See `read_panoptic`.

    Raises:
        ConfigError: See `read_coco`, `read_panoptic`.
    """
    ann_file = annotation_file(dataset)
    if is_panoptic(kind):
        segments = Path(dataset.get("data_root") or "", (dataset.get("data_prefix") or {}).get("seg") or "")
        found = read_panoptic(Path(ann_file), segments, number)
    else:
        found = read_coco(Path(ann_file))
    if not any(fault.grave for fault in found.faults):
        with suppress(OSError), atomic_write(_passed(ann_file)) as scratch:  # else the next start reads the file again
            scratch.touch()
    return found


def masks(where: str, dataset: Mapping) -> Iterator[Fault]:
    """Annotations have masks if the pipeline loads masks. A worker would raise ``KeyError: 'mask'``.

    Args:
        where: Name of the data set in messages.
        dataset: Its config: one with a COCO annotation file that exists.
    """
    if any(step.get("with_mask") for step in nodes(dataset.get("pipeline", ()))):
        ann_file = annotation_file(dataset)
        found = overview(Path(ann_file))
        if (without := found.annotations - found.masks) > 0:
            yield Fault(
                f"{without} of {found.annotations} annotations of {ann_file} have no 'segmentation', but the pipeline "
                f"loads masks (with_mask=True)",
                where,
                fix="remove them or add masks. To train on boxes alone, start from "
                "configs/cascade_rcnn_swin_t_coco.py or configs/faster_rcnn_swin_t_coco.py, or let `python -m vitdense "
                "new detection --boxes` write a config",
            )


def evaluators(cfg: Config, splits: Sequence[str]) -> Iterator[Fault]:
    """Metrics read the annotation file of their data set.

    Otherwise the first evaluation fails, after hours, or compares with other annotations. Not checked are splits of
    several data sets or metrics.
    """
    for split in splits:
        found = [dataset for _, dataset, _ in datasets(cfg, (split,))]
        metrics = as_list(cfg.get(f"{split}_evaluator"))
        if split == "train" or len(found) != 1 or len(metrics) != 1:
            continue
        named, of_data = metrics[0].get("ann_file"), annotation_file(found[0])
        if named and of_data and Path(named).resolve() != Path(of_data).resolve():
            yield Fault(
                f"got {named}, expected the file of {split}_dataloader, {of_data}",
                f"{split}_evaluator.ann_file",
                fix="leave it out, and it follows the data set",
            )


def label_maps(cfg: Config, splits: Sequence[str]) -> Iterator[Fault]:
    """Label maps of mmseg have the values that the head and the settings expect."""
    for where, dataset, kind in datasets(cfg, splits) if cfg.get("default_scope") == "mmseg" else ():
        if is_on_disk(dataset, kind):
            yield from caught(_label_maps_of, where, dataset, kind, cfg)


def _label_maps_of(where: str, dataset: dict, kind: type, cfg: Config) -> Iterator[Fault]:
    if label_loader(dataset) is not None and decode_head(cfg).get("num_classes") is not None:
        yield from label_faults(where, labels_of(where, dataset), kind, cfg)


def label_loader(dataset: dict) -> dict | None:
    """The step of a pipeline that loads label maps."""
    return next(filter(loads_labels, dataset.get("pipeline", ())), None)


def labels_of(where: str, dataset: dict, number: int | None = FILES_READ) -> LabelMaps:
    """The label maps of a data set whose pipeline loads them; see `read_label_maps`."""
    backend = label_loader(dataset).get("imdecode_backend", "pillow")
    return read_label_maps(build_dataset(where, dataset), backend, number, keeps_orientation(dataset))


def decode_head(cfg: Config) -> dict:
    """The head that predicts the classes, the last of a cascade; empty if the model has none."""
    head = cfg.model.get("decode_head", {})
    return head[-1] if isinstance(head, (list, tuple)) else head


def label_faults(where: str, maps: LabelMaps, kind: type, cfg: Config) -> Iterator[Fault]:
    """What is wrong with label maps: with the files, else with values that have no class, or ``reduce_zero_label``.

    Args:
        where: Name of the data set in messages; starts with ``train`` for a training set.
        maps: What was read of them.
        kind: Class of the data set.
        cfg: The whole config, with the number of classes in the head.
    """
    yield from (fault.within(where) for fault in maps.faults)
    if any(fault.grave for fault in maps.faults):
        return
    head, training = decode_head(cfg), where.startswith("train")
    num_classes, ignored = head["num_classes"], head.get("ignore_index", UNLABELLED)
    outputs = max(2, num_classes) if head.get("out_channels") == 1 else num_classes  # a sigmoid has 0 and 1
    labels = {raw: maps.label(raw) for raw in sorted(maps.pixels)}
    # mmseg keeps labels in 8 bits
    outside = [raw for raw, label in labels.items() if label != ignored and not 0 <= label < min(outputs, 256)]
    if set(labels.values()) <= {ignored} and where.startswith(("train", "val")):
        what = f"have no pixel of a class: there is nothing to {'learn' if training else 'evaluate'}"
        fix = "set ignore_index, label_map or reduce_zero_label, or label the images"
    elif outside:
        what = f"hold {', '.join(map(str, outside[:10]))} (first in {maps.first_in[outside[0]]}), which have no class"
        fix = "set num_classes and classes, reduce_zero_label (True: 0 means unlabelled) or ignore_index accordingly"
    elif maps.label_map:
        return
    elif training and not maps.reduced and set(maps.pixels) == {0, UNLABELLED} == {0, ignored}:
        what, fix = "are masks of 0 and 255, but 255 is ignored", "write 1 in place of 255"
    else:
        what = _zero_fault(maps.pixels, num_classes, maps.reduced, kind, training)
        fix = f"set reduce_zero_label={not maps.reduced} in the data set"
    if what is not None:
        yield Fault(
            f"label maps {what}. Got raw values {_shares(maps.pixels)} in {maps.read} of {maps.total} maps; expected "
            f"values for num_classes={num_classes}, reduce_zero_label={maps.reduced}, ignore_index={ignored}",
            where,
            fix=fix,
        )


def _zero_fault(values: Collection[int], num_classes: int, reduced: bool, kind: type, training: bool) -> str | None:
    """What is wrong with ``reduce_zero_label``, if all values have a class; None if nothing certainly is."""
    default = inspect.signature(kind).parameters.get("reduce_zero_label")
    usually_reduced = default is not None and default.default is True
    if not reduced:
        # Files of this type whose labels were already reduced have 255 for unlabelled pixels, not 0.
        if usually_reduced and 0 in values and UNLABELLED not in values:
            return f"have 0 for unlabelled pixels, as is usual for {kind.__name__}, but 0 is read as a class"
        return None
    # A validation set may lack the last class by chance, and so may a type that is usually reduced. There, only pixels
    # of 255 show that 0 does not mean unlabelled.
    likely = UNLABELLED in values or (training and not usually_reduced)
    if likely and set(range(num_classes)) <= set(values) and num_classes not in values:
        return f"have 0 for a class, but 0 is read as unlabelled, and class {num_classes - 1} never occurs"
    return None


def _shares(pixels: Counter) -> str:
    """The lowest values, each with its share of the pixels."""
    parts = [f"{raw} ({100 * pixels[raw] / pixels.total():.2g} %)" for raw in sorted(pixels)]
    rest = [f"... {len(parts) - VALUES_SHOWN} more"] if len(parts) > VALUES_SHOWN else []
    return ", ".join(parts[:VALUES_SHOWN] + rest)
