"""Checks of the data: files exist, classes meet by name, annotations and label maps are those that mm reads.

Labels that are off by one, or unlabelled pixels that are read as a class, silently train a wrong model.
"""

import inspect
import json
import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import DATASETS

from vitdense.files import atomic_write, sha256_of
from vitdense.mm.checks.seen import SeenImages
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
from vitdense.mm.data.classes import names_faults
from vitdense.mm.data.coco import DOUBLES, Annotations, overview, read_coco
from vitdense.mm.data.faults import Fault, caught
from vitdense.mm.data.images import (
    FILES_READ,
    Examined,
    copied,
    evenly_spaced,
    examine_images,
    keeps_orientation,
    read_image_file,
)
from vitdense.mm.data.label_maps import UNLABELLED, LabelMaps, build_dataset, read_label_maps
from vitdense.mm.data.panoptic import read_panoptic
from vitdense.mm.data.voc import Voc, read_voc
from vitdense.mm.errors import ConfigError, join_some

VERSION = 6  # of the faults of annotation files
BOXES_ALONE = (
    "remove them or add masks. To train on boxes alone, start from configs/cascade_rcnn_swin_t_coco.py or "
    "configs/faster_rcnn_swin_t_coco.py, or let `python -m vitdense new detection --boxes` write a config"
)
SAMPLE = 20_000  # images of each split of which copies are sought
ABSENT = "label some, or leave the names out of the classes"
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
        if annotation_file(dataset) is None:  # of a file, its reader says it
            yield from (fault.within(f"{where}.dataset") for fault in names_faults(own or ()))
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
        return overview(Path(ann_file)).categories or None if ann_file and Path(ann_file).is_file() else None


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
            fix="give the same class the same name in both",
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


@dataclass
class Summary:
    """What the start of a training asks of an annotation file, without reading it again.

    Attributes:
        faults: Of the file.
        images: Name, width and height of its images.
        counts: Objects per category name.
        without_mask: Ids of annotations of instances without a mask.
    """

    faults: list[Fault]
    images: list[tuple[str, int, int]]
    counts: dict[str, int]
    without_mask: list[int]


SUMMARIES: dict[Path, Summary] = {}  # that this process made or read


def annotations(cfg: Config, splits: Sequence[str]) -> Iterator[Fault]:
    """Annotation files of COCO's formats are right. One process of a machine reads them, for all."""
    seen, trained = set(), set()
    for where, dataset, kind in datasets(cfg, splits):
        ann_file = annotation_file(dataset)
        if not is_on_disk(dataset, kind) or not ann_file or not (reads_coco(kind) or is_panoptic(kind)):
            continue
        is_training, first = where.startswith("train"), ann_file not in seen
        seen.add(ann_file)
        if int(os.environ.get("LOCAL_RANK", 0)):
            continue
        try:
            found = summary(dataset, kind)
        except ConfigError as error:
            if first:
                yield Fault(str(error))
            continue
        if is_training:
            trained |= found.counts.keys()
        if first:
            if not any(found.counts.values()):
                what = f"{ann_file} has no annotations: there is nothing to"
                yield Fault(f"{what} {'learn' if is_training else 'evaluate'}", where, grave=is_training)
            faults = (x for x in found.faults if x.what != DOUBLES or not dataset.get("drop_doubles"))
            yield from (fault.within(f"{where}: {ann_file}") for fault in faults)
        if found.without_mask and any(step.get("with_mask") for step in nodes(dataset.get("pipeline", ()))):
            what = "annotations have no 'segmentation', but the pipeline loads masks (with_mask=True)"
            items, total = tuple(found.without_mask), sum(found.counts.values())
            yield Fault(what, f"{where}: {ann_file}", items, BOXES_ALONE, of="annotations", total=total)
        own = effective_classes(dataset, kind) or ()
        if is_training and (absent := [name for name in own if not found.counts.get(name)]):
            yield Fault(f"no object of {len(absent)} classes: {join_some(absent)}", where, fix=ABSENT, grave=False)
        others = [f"{name} ({n})" for name, n in found.counts.items() if n and name not in {*own, *trained}]
        if trained and others:
            what = f"objects of classes that the training data do not have are not evaluated: {join_some(others)}"
            yield Fault(what, where, grave=False)


def summary(dataset: dict, kind: type) -> Summary:
    """What an annotation file holds, in short; that of a file without grave faults is remembered on the disk.

    Raises:
        ConfigError: See `read_coco`, `read_panoptic`.
    """
    mark = _mark(dataset, kind)
    if mark not in SUMMARIES:
        with suppress(OSError, ValueError, TypeError):  # none yet, or cut by a full disk: the file is read
            saved = json.loads(mark.read_bytes())
            faults = [Fault(**{**one, "items": tuple(one["items"])}) for one in saved.pop("faults")]
            SUMMARIES[mark] = Summary(faults, **saved)
    if mark not in SUMMARIES:
        read_annotations(dataset, kind)
    return SUMMARIES[mark]


def _mark(dataset: dict, kind: type) -> Path:
    """The file of a summary, by the digest of the annotation file and the times of its PNGs: to read takes a while."""
    pngs = () if (segments := segments_folder(dataset, kind)) is None else segments.glob("*.png")
    times = sorted((one.name, one.stat().st_mtime_ns) for one in pngs)
    stat = os.stat(annotation_file(dataset))
    known = _digest(os.path.abspath(annotation_file(dataset)), stat.st_mtime_ns, stat.st_size)
    digest = sha256(f"{VERSION} {known} {times}".encode()).hexdigest()
    return Path(torch.hub.get_dir(), "vitdense", f"annotations-{digest}.json")


@lru_cache
def _digest(path: str, _modified: int, _size: int) -> str:
    return sha256_of(path)


def segments_folder(dataset: dict, kind: type) -> Path | None:
    """The folder of the PNGs of panoptic data."""
    inside = (dataset.get("data_prefix") or {}).get("seg") or ""
    return Path(dataset.get("data_root") or "", inside) if is_panoptic(kind) else None


def read_annotations(dataset: dict, kind: type, number: int | None = FILES_READ) -> Annotations:
    """The annotations of a data set, of which a summary is remembered.

    Args:
        dataset: Its config.
        kind: Its class.
        number: See `read_panoptic`.

    Raises:
        ConfigError: See `read_coco`, `read_panoptic`.
    """
    ann_file, segments, mark = Path(annotation_file(dataset)), segments_folder(dataset, kind), _mark(dataset, kind)
    found = read_coco(ann_file) if segments is None else read_panoptic(ann_file, segments, number)
    images = [(image["file_name"], image["width"], image["height"]) for image in found.images]
    without_mask = found.without_mask if segments is None else []
    SUMMARIES[mark] = made = Summary(found.faults, images, found.counts, without_mask)
    if not any(fault.grave for fault in found.faults):
        with suppress(OSError), atomic_write(mark) as scratch:  # else the next start reads the file again
            scratch.write_text(json.dumps(asdict(made), default=str), encoding="utf-8")
    return found


def voc(cfg: Config, splits: Sequence[str]) -> Iterator[Fault]:
    """Names in Pascal VOC's files are classes: mmdet drops other objects."""
    for where, dataset, kind in datasets(cfg, splits):
        if is_voc(kind) and is_on_disk(dataset, kind) and not int(os.environ.get("LOCAL_RANK", 0)):
            found, own = voc_of(dataset), effective_classes(dataset, kind) or ()
            yield from (fault.within(where) for fault in found.faults)
            absent = [name for name in own if not found.counts[name]]
            if others := [f"{name} ({count})" for name, count in found.counts.items() if name not in own]:
                what = f"objects of names that are no class are left out: {join_some(others)}; got {join_some(own)}"
                grave = len(absent) == len(own) or (bool(absent) and where.startswith("train"))
                yield Fault(what, where, fix="give the same class the same name in both", grave=grave)
            elif absent and where.startswith("train"):
                yield Fault(f"no object of {len(absent)} classes: {join_some(absent)}", where, fix=ABSENT, grave=False)


def is_voc(kind: type | None) -> bool:
    """Whether a data set reads Pascal VOC's files as mmdet's XMLDataset does."""
    xml = next((base for base in getattr(kind, "__mro__", ()) if base.__name__ == "XMLDataset"), None)
    return xml is not None and kind.load_data_list is xml.load_data_list


def voc_of(dataset: dict) -> Voc:
    """The XML files of a data set.

    Raises:
        ConfigError: The list of files cannot be read.
    """
    with DATASETS.switch_scope_and_registry("mmdet") as registry:
        built = registry.build({**dataset, "pipeline": [], "lazy_init": True})
    folder = Path(built.sub_data_root)
    return read_voc(Path(built.ann_file), folder / built.ann_subdir, folder / built.img_subdir)


def images(cfg: Config, splits: Sequence[str]) -> Iterator[Fault]:
    """Image files exist, and are whole and of the size that is annotated, of a sample by their first and last bytes.

    For the start of a training or test; `vitdense check` decodes them.
    """
    for where, dataset, kind in datasets(cfg, splits):
        if is_on_disk(dataset, kind) and not int(os.environ.get("LOCAL_RANK", 0)):
            with suppress(ConfigError):  # of the annotations, which are faults already
                yield from examined_images(where, dataset, kind, FILES_READ, whole=False).faults


def examined_images(where: str, dataset: dict, kind: type, number: int | None, whole: bool = True) -> Examined:
    """See `examine_images`. Of a training that skips images that it cannot read, faults are warnings."""
    sizes = image_sizes(where, dataset, kind)
    read = SeenImages(sizes) if whole else partial(read_image_file, whole=False)
    found = examine_images(sizes, number, keeps_orientation(dataset), read)
    if whole:
        read.save()
    skips = any(step.get("skip_unreadable") for step in dataset.get("pipeline") or ())
    return found._replace(
        faults=[replace(fault.within(where), grave=fault.grave and not skips) for fault in found.faults]
    )


def image_sizes(where: str, dataset: dict, kind: type) -> dict[str, tuple[int, int] | None]:
    """Paths of the images of a data set, and their annotated width and height, if they have one; none of other kinds.

    Raises:
        ConfigError: The data set cannot be read.
    """
    if annotation_file(dataset) and (reads_coco(kind) or is_panoptic(kind)):
        folder = os.path.join(dataset.get("data_root") or "", (dataset.get("data_prefix") or {}).get("img") or "")
        return {os.path.join(folder, name): (w, h) for name, w, h in summary(dataset, kind).images}
    if is_voc(kind):
        return dict(voc_of(dataset).sizes)
    if hasattr(kind, "get_label_map"):
        built = build_dataset(where, dataset)
        return {built.get_data_info(i)["img_path"]: None for i in range(len(built))}
    return {}


def overlap(cfg: Config, splits: Sequence[str]) -> Iterator[Fault]:
    """Training and validation have no image in common, by its path or, of a sample, by its bytes."""
    if not {"train", "val"} <= {*splits} or int(os.environ.get("LOCAL_RANK", 0)):
        return
    of: dict[str, set[str]] = {"train": set(), "val": set()}
    for split, paths in of.items():
        for where, dataset, kind in datasets(cfg, (split,)):
            if is_on_disk(dataset, kind):
                with suppress(ConfigError):
                    paths |= {os.path.abspath(path) for path in image_sizes(where, dataset, kind)}
    if same := sorted(of["train"] & of["val"]):
        yield Fault("images are in training and validation both:", "val_dataloader", tuple(same), grave=False)
    others = (evenly_spaced(sorted(paths - {*same}), SAMPLE) for paths in of.values())
    if copies := copied(*others):
        pairs = tuple(f"{b} ({a})" for a, b in copies)
        yield Fault(
            "images of the validation are copies of images of the training, in both by their bytes:",
            "val_dataloader",
            pairs,
            grave=False,
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
    outside = [raw for raw, label in labels.items() if label != ignored and not 0 <= label < outputs]
    if outputs > UNLABELLED:
        what = f"have {outputs} classes, but mmseg reads them in 8 bits: labels are 0 to 254, and 255 is unlabelled"
        fix = "join classes until there are 255 or fewer, and write maps anew"
    elif set(labels.values()) <= {ignored} and where.startswith(("train", "val")):
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
    elif training and (absent := [name for i, name in enumerate(maps.names) if i not in set(labels.values())]):
        yield Fault(f"no pixel of {len(absent)} classes: {join_some(absent)}", where, grave=False)


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
