"""Checks of the data: files exist, classes match by name, the content is valid, metrics read the right files.

Labels that are off by one, or unlabelled pixels read as a class, silently train a wrong model.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from mmengine.config import Config

from vitdense.mm.checks.sets import SAME_NAMES, DataSet
from vitdense.mm.config import query
from vitdense.mm.data.classes import alike, names_faults
from vitdense.mm.data.coco import overview
from vitdense.mm.data.faults import Fault, Faults, caught
from vitdense.mm.errors import ConfigError, join_some

ABSENT = "label some, or leave the names out of the classes"
FEW = 50  # least objects of a class: with 50, a share has a sampling error of 14 points (95 %)


def files(cfg: Config, sets: Sequence[DataSet]) -> Iterator[Fault]:
    """The types of data sets are registered, and their files and folders exist."""
    for one in sets:
        if one.kind is None:
            yield Fault(f"no data set of type {one.dataset['type']!r} is registered", one.where)
        root = Path(one.root)
        fix = f"put the data set at {root} (or link it: ln -s /path/to/it {root}) or set its folder by --cfg-options"
        if hasattr(one.kind, "COCOAPI") and not one.dataset.get("ann_file"):
            got = f"got {one.dataset.get('ann_file')!r}, expected a file of annotations"
            yield Fault(got, f"{one.where}.dataset.ann_file")
        for what, path in () if one.is_drawn else one.paths:
            if not path.exists():
                place = "" if path.is_absolute() else f" in the current folder, {Path.cwd()}"
                yield Fault(f"{what} {path} does not exist{place}", one.where, fix=f"{fix} data_root=/path/to/it")


def classes(cfg: Config, sets: Sequence[DataSet]) -> Iterator[Fault]:
    """The classes of the model match the heads, the data sets and their annotation files by name."""
    yield from caught(_classes_of_heads, cfg)
    model, faults = query.model_classes(cfg), Faults()
    faults.add("classes have names that differ in case alone", *alike(model or ()), grave=False, fix=SAME_NAMES)
    yield from faults
    for one in (one for one in sets if one.kind is not None):
        own = query.effective_classes(one.dataset, one.kind)
        if one.file is None:  # else the reader of the file reports it
            yield from (fault.within(f"{one.where}.dataset") for fault in names_faults(own or ()))
        # `follow_classes` gives the model's classes to all data sets that can have them.
        if None not in (model, own) and own != model:
            expected = f"expected those of the model, which are those of the training data: {join_some(model)}"
            yield Fault(f"got the classes {join_some(own)}, {expected}", one.where, fix=SAME_NAMES)
        yield from _classes_of_file(one, sets)


def _categories(dataset: dict) -> tuple[str, ...] | None:
    ann_file = query.annotation_file(dataset)
    with suppress(ConfigError):
        return overview(Path(ann_file)).categories or None if ann_file and Path(ann_file).is_file() else None


def _classes_of_file(one: DataSet, sets: Sequence[DataSet]) -> Iterator[Fault]:
    """The classes of a data set are categories of its annotation file. A validation, or one of several files, may lack
    some."""
    names, own = _categories(one.dataset), query.effective_classes(one.dataset, one.kind)
    if names is None or own is None:
        return
    if query.numbers_by_file(one.kind) and own != tuple(name for name in names if name in set(own)):
        what = f"{one.kind.__name__} numbers labels in the order of {one.file}, {join_some(names)}"
        fix = "set type='vitdense.CocoDataset', which reads them by name"
        yield Fault(f"{what}; the model has {join_some(own)}", one.where, fix=fix)
        return
    absent = [name for name in own if name not in names]
    beside = {name for other in sets if other.name == one.name for name in _categories(other.dataset) or ()}
    has_none = len(absent) == len(own)
    if absent and (has_none or not set(absent) <= beside):
        what = f"{one.file} has no category {join_some(absent)} of the classes; it has {join_some(names)}"
        yield Fault(what, one.where, fix=SAME_NAMES, grave=has_none or one.training)


def _classes_of_heads(cfg: Config) -> Iterator[Fault]:
    """Heads have the classes of the model, or its things alone: panoptic data also have classes of stuff. An RPN tells
    objects from background."""
    if (got := (cfg.model.get("rpn_head") or {}).get("num_classes", 1)) != 1:
        what = f"got {got}, expected 1, an object"
        yield Fault(what, "model.rpn_head.num_classes", fix="leave it out of your config")
    if (own := query.model_classes(cfg)) is None:
        return
    things, follow = query.model_things(cfg), "leave it out of your config: heads follow the data"
    for path, head in query.class_heads(cfg.model):
        if head.get("num_classes") not in (None, len(own), things):
            what = f"got {head['num_classes']}, expected {len(own)}, the classes of the data"
            yield Fault(what, f"{path}.num_classes", fix=f"set it to {len(own)}, or {follow}")
        number = head.get("num_classes") or len(own)
        for loss in query.nodes(head):
            weights = loss.get("class_weight")
            if isinstance(weights, (list, tuple)) and len(weights) not in (number, number + 1):
                expected = f"one for each of {number} classes, and one more for the background of a softmax"
                where = f"class_weight of {loss.get('type', 'a loss')} in {path}"
                yield Fault(f"got {len(weights)} weights, expected {expected}", where)
    expected = {"num_things_classes": len(own) if things is None else things}
    expected["num_stuff_classes"] = len(own) - expected["num_things_classes"]
    for head in query.nodes(cfg.model):  # heads of Mask2Former
        for key, number in expected.items():
            if head.get(key, number) != number:
                weights = " and the class_weight of its loss_cls" if "class_weight" in head.get("loss_cls", {}) else ""
                what = f"the data have {number} classes of {key.split('_')[1]}, but {key} of {head.get('type')} is"
                yield Fault(f"{what} {head[key]}", fix=f"set it{weights} accordingly, or {follow}")


def _readable(sets: Sequence[DataSet]) -> list[DataSet]:
    """The data sets on this disk; empty in all processes of a machine but one, which reads them for all."""
    return [] if int(os.environ.get("LOCAL_RANK", 0)) else [one for one in sets if one.is_here]


def contents(cfg: Config, sets: Sequence[DataSet]) -> Iterator[Fault]:
    """The content of data sets is valid and has the classes."""
    seen, trained = set(), set()
    for one in _readable(sets):
        if one.training:
            trained |= one.samples.counts.keys()
        key = (id(one.first), one.loads_masks)
        yield from caught(one.faults, key not in seen, trained)
        seen.add(key)
    yield from _absent([one for one in _readable(sets) if one.training and one.counts])


def _absent(trained: Sequence[DataSet]) -> Iterator[Fault]:
    """Classes without an object or pixel in the training data. A small data set, to try a config, may lack many."""
    names = dict.fromkeys(name for one in trained for name in one.classes)
    absent = [name for name in names if not any(one.counts.get(name) for one in trained)]
    if absent and not sum(len(one.samples.sizes) for one in trained) < len(names) < 2 * len(absent):
        what = f"classes without any {trained[0].thing}: {len(absent)} ({join_some(absent)})"
        yield Fault(what, trained[0].where, fix=ABSENT, grave=False)


def few(cfg: Config, sets: Sequence[DataSet]) -> Iterator[Fault]:
    """A validation has enough objects of every class."""
    for one in (one for one in _readable(sets) if one.name == "val"):
        counts = one.samples.counts
        names = tuple(f"{name} ({counts[name]})" for name in one.classes if 0 < counts.get(name, 0) < FEW)
        what = f"classes have under {FEW} objects, so that chance moves their AP, and its mean, by many points"
        if names:
            yield Fault(what, one.where, names, "validate on more images", grave=False, total=len(one.classes))


def images(cfg: Config, sets: Sequence[DataSet]) -> Iterator[Fault]:
    """Image files exist, and a sample of them is complete and of the annotated size, by first and last bytes.

    For the start of a training or test; `vitdense check` decodes them.
    """
    for one in _readable(sets):
        yield from one.images(whole=False)[1]


def overlap(cfg: Config, sets: Sequence[DataSet]) -> Iterator[Fault]:
    """Training and validation share no image file."""
    of: dict[str, set[str]] = {"train": set(), "val": set()}
    for one in (one for one in _readable(sets) if one.name in of):
        of[one.name] |= set(map(os.path.abspath, one.image_paths))
    if same := sorted(of["train"] & of["val"]):
        yield Fault("images are in training and validation both", "val_dataloader", tuple(same), grave=False)


def evaluators(cfg: Config, sets: Sequence[DataSet]) -> Iterator[Fault]:
    """Metrics read the annotation file of their data set, without the objects that it drops.

    Otherwise the first evaluation fails, after hours, or compares with other annotations. Splits of several data sets
    or metrics are not checked.
    """
    for split in ("val", "test"):
        found, metrics = [one for one in sets if one.name == split], query.as_list(cfg.get(f"{split}_evaluator"))
        if len(found) != 1 or len(metrics) != 1:
            continue
        named, of_data, kind = metrics[0].get("ann_file"), found[0].file, metrics[0].get("type")
        if named and found[0].dataset.get("drop_doubles") and not metrics[0].get("drop_doubles"):
            what = f"{kind} counts objects that {split}_dataloader drops (drop_doubles=True) as missed"
            fix = "set type='vitdense.CocoMetric' and drop_doubles=True, or drop the objects in the file"
            yield Fault(what, f"{split}_evaluator", fix=fix)
        if named is not None and of_data and Path(named).resolve() != Path(of_data).resolve():
            key = f"{split}_evaluator.ann_file"
            fix = f"leave it out, and it follows the data set, or set both: --cfg-options {key}={of_data}"
            yield Fault(f"got {named!r}, and {split}_dataloader has {of_data}", key, fix=fix)
