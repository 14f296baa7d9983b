"""The data sets of a config by format: content, faults, and rows in a report.

The files of a data set are listed and read once for all checks and the report.
"""

import inspect
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from vitdense.mm.config import query
from vitdense.mm.config.base import explained
from vitdense.mm.config.limits import as_options, raised_limits
from vitdense.mm.data import coco, panoptic
from vitdense.mm.data.coco import DOUBLES, parse, used
from vitdense.mm.data.faults import Fault, Samples, Size
from vitdense.mm.data.images import FILES_READ, ImageFile, describe_images, examine_images, keeps_orientation
from vitdense.mm.data.label_maps import UNLABELLED, LabelMaps, build_dataset, read_label_maps
from vitdense.mm.errors import ConfigError, join_some
from vitdense.seams import ask, kind_of

BOXES_ALONE = "remove them or add masks; for boxes alone, let `vitdense new detection --boxes` write a config"
SAME_NAMES = "give the same class the same name in both"
OF_USE = ("pipeline", "test_mode", "filter_cfg", "lazy_init", "serialize_data")  # arguments that concern no file
VALUES_SHOWN = 20  # in a histogram
CLASSES_SHOWN = 40
BAR = 40  # characters


class DataSet:
    """A data set of a config. This base is for unknown formats.

    Args:
        where: Key of its loader.
        dataset: Config of the data set.
        kind: Class of the data set; None if it is not registered.
        cfg: The whole config.
        number: Image files, PNGs and label maps to read, evenly spaced; None for all.

    Attributes:
        first: The first data set of the same files, which reads them; may be this one.
        label: Name in rows and reports: the split, and a number if there are several.
        rows: Rows from `describe`, without the classes.
        is_described: Whether `describe` could read the data.
    """

    unit, form, thing = "boxes", "{:.0f}", "object"  # unit, format and noun of `counts`

    def __init__(self, where: str, dataset: dict, kind: type | None, cfg: Config, number: int | None) -> None:
        self.where, self.dataset, self.kind, self.cfg, self.number, self.first = where, dataset, kind, cfg, number, self
        self.name, self.training = where.removesuffix("_dataloader"), where.startswith("train")
        self.label, self.rows, self.is_described = self.name, [], False
        self.root, self.prefix = str(dataset.get("data_root") or ""), dataset.get("data_prefix") or {}
        self.file = query.annotation_file(dataset)
        self.folder = os.path.join(self.root, self.prefix.get("img") or "") if self.file else ""
        self.is_drawn = getattr(kind, "drawn_on_demand", False)
        self.stored = keeps_orientation(dataset)

    @property
    def paths(self) -> Iterator[tuple[str, Path]]:
        """Keys of the config and local paths that are read. A storage service (s3://) is left to mmengine."""
        if self.kind is None or "://" in self.root:
            return
        if self.dataset.get("ann_file"):
            yield "annotation file", Path(self.root, self.dataset["ann_file"])
        for name, prefix in self.prefix.items():
            if prefix is not None:
                yield f"folder ({name})", Path(self.root, prefix)

    @property
    def is_here(self) -> bool:
        """Whether all paths exist on this disk."""
        paths = list(self.paths)
        return bool(paths) and all(path.exists() for _, path in paths)

    @property
    def classes(self) -> Sequence[str]:
        """Class names in the order of labels."""
        return query.effective_classes(self.dataset, self.kind) or ()

    @cached_property
    def samples(self) -> Samples:
        """The content of the files; only a fault if they have another format."""
        if self.first is not self:
            return self.first.samples
        try:
            return self.read()
        except ConfigError as error:
            return Samples({}, faults=[Fault(str(error))])

    def read(self) -> Samples:
        return Samples({})

    @property
    def image_paths(self) -> dict[str, Size | None]:
        """Path of an image -> annotated size."""
        return {os.path.join(self.folder, name): size for name, size in self.samples.sizes.items()}

    def faults(self, first: bool, trained: Collection[str]) -> Iterator[Fault]:
        """Faults of the content.

        Args:
            first: Whether this is the first data set of its files.
            trained: Classes with objects in the training data.
        """
        place = f"{self.where}: {self.file}" if self.file and self.samples.sizes else self.where
        for fault in self.samples.faults if first else ():
            yield replace(fault, grave=fault.grave and (self.loads_masks or not fault.of_masks)).within(place)

    @property
    def loads_masks(self) -> bool:
        """Whether the pipeline or the metric takes masks of instances."""
        metrics = [] if self.training else query.as_list(self.cfg.get(f"{self.name}_evaluator"))
        steps = any(step.get("with_mask") for step in query.nodes(self.dataset.get("pipeline", ())))
        return steps or any("segm" in query.as_list(metric.get("metric")) for metric in metrics)

    @property
    def counts(self) -> Mapping[str, float]:
        """Number of each class, in `unit`."""
        return {name: self.samples.counts.get(name, 0) for name in self.classes if self.samples.rows}

    @property
    def absent(self) -> list[str]:
        """Classes without any object or pixel."""
        held = self.samples.counts or self.counts
        return [name for name in self.classes if not held.get(name)]

    def images(self, whole: bool = True) -> tuple[list[ImageFile], list[Fault]]:
        """The image files, see `examine_images`; faults are warnings if a training skips unreadable images."""
        number, steps = self.number if whole else FILES_READ, self.dataset.get("pipeline") or ()
        read = ask("images", "examiner", steps, self.cfg)
        found, faults = examine_images(self.image_paths, number, self.stored, whole, read)
        skips = any(step.get("skip_unreadable") for step in steps)
        return found, [replace(fault.within(self.where), grave=fault.grave and not skips) for fault in faults]

    @property
    def num_train(self) -> int:
        """Number of images used in training."""
        return len(self.samples.sizes) * self.training if self.is_here else 0

    def describe(self, say: Callable[[str], None]) -> Iterator[Fault]:
        """Pass rows to `say` while the files are read; yield faults of the images and of their use."""

        def row(text: str) -> None:
            self.rows.append(text)
            say(text)

        if not self.is_here or not self.samples.rows:
            lack = "not annotations of COCO instances" if self.is_here else "not on this disk"
            row(f"{self.kind.__name__} in {Path(self.root)}: {lack}")
            return
        self.is_described = True
        first, *others = self.samples.rows
        for text in (f"{self.file}: {first}" if self.file else first, *others):
            row(text)
        if self.training:
            row(f"images used for training: {self.num_train}")
        yield from self.faults_of_use()
        found, faults = self.images()
        row(f"image files: {len(found)} of {len(self.image_paths)} read: {describe_images(found)}")
        yield from faults
        for text in self.histogram():
            say(text)

    def faults_of_use(self) -> Iterator[Fault]:
        """Warnings of objects that training or the metric leaves out."""
        yield from ()

    @property
    def shown(self) -> tuple[str, Mapping[str, float]]:
        return f"{self.unit} of classes ({len(self.counts)})", self.counts

    def histogram(self) -> Iterator[str]:
        """Lines of a histogram of `shown`."""
        if self.counts:
            title, values = self.shown
            yield f"{title}:"
            yield from bars(values, self.form)
        if self.absent:
            yield f"classes without any {self.thing}: {len(self.absent)} of {len(self.classes)}"


class AnnotatedSet(DataSet):
    """A JSON file of instances or of panoptic segments."""

    def read(self) -> Samples:
        return coco.examine(coco.read(Path(self.file)))

    def faults(self, first: bool, trained: Collection[str]) -> Iterator[Fault]:
        held, total = self.samples, sum(self.samples.counts.values())
        if first and held.sizes and not total:
            what = f"{self.file} has no annotations: there is nothing to {'learn' if self.training else 'evaluate'}"
            yield Fault(what, self.where, grave=self.training)
        dropped = DOUBLES if self.dataset.get("drop_doubles") else None
        yield from (fault for fault in super().faults(first, trained) if fault.what != dropped)
        if held.without_mask and self.loads_masks:
            what = "annotations have no 'segmentation', but masks are loaded (with_mask=True) or evaluated (segm)"
            where, items = f"{self.where}: {self.file}", tuple(held.without_mask)
            yield Fault(what, where, items, BOXES_ALONE, of="annotations", total=total)
        others = [f"{name} ({n})" for name, n in held.counts.items() if n and name not in {*self.classes, *trained}]
        if trained and others:
            what = f"objects of classes that the training data do not have are not evaluated: {join_some(others)}"
            yield Fault(what, self.where, grave=False)

    @property
    def num_train(self) -> int:
        if not super().num_train:
            return 0
        return used(parse(Path(self.file)), set(self.classes), self.dataset.get("filter_cfg") or {})

    def faults_of_use(self) -> Iterator[Fault]:
        densest = self.samples.densest
        in_tile = ask("check", "densest", self.cfg, self.name, self.file)
        if limits := raised_limits(self.cfg, densest, in_tile):
            has = f"{densest} objects{'' if in_tile is None else f', a tile {in_tile}'}"
            what = f"an image of {self.file} has {has}, more than the model can find or the metric counts"
            fix = f"to raise their limits: --cfg-options {as_options(limits)}"
            yield Fault(what, self.where, fix=fix, grave=False)
        if self.training and not self.num_train:
            what = f"no image of {self.file} is left for training: filter_cfg={self.dataset.get('filter_cfg')} "
            yield Fault(f"{what}leaves out small ones, and those without a box of the classes", self.where)

    def histogram(self) -> Iterator[str]:
        yield from super().histogram()
        others = [f"{name} ({n})" for name, n in self.samples.counts.items() if name not in self.classes]
        if others:
            yield f"boxes of other categories, not used: {join_some(others)}"


class PanopticSet(AnnotatedSet):
    """Segments, in a JSON file and PNGs."""

    unit, form, thing = "% of pixels", "{:.3g} %", "segment"
    num_train, faults_of_use = DataSet.num_train, DataSet.faults_of_use

    @property
    def segments(self) -> Path:
        return Path(self.root, self.prefix.get("seg") or "")

    def read(self) -> Samples:
        return panoptic.examine(panoptic.read(Path(self.file)), self.segments, self.number)

    @property
    def counts(self) -> Mapping[str, float]:
        return self.samples.shares


class MapSet(DataSet):
    """Label maps of mmseg."""

    unit, form, thing = "% of pixels", "{:.3g} %", "pixel"

    @property
    def loader(self) -> dict | None:
        """The pipeline step that loads label maps."""
        return next(filter(query.loads_labels, self.dataset.get("pipeline", ())), None)

    @property
    def head(self) -> dict:
        """The head that predicts classes, the last of a cascade; empty if there is none."""
        head = self.cfg.model.get("decode_head", {})
        return head[-1] if isinstance(head, (list, tuple)) else head

    @cached_property
    def listed(self) -> tuple[BaseDataset, list[dict]]:
        """mmseg's data set, which lists the files, and its entries of images."""
        with explained(self.cfg):
            built = build_dataset(self.dataset)
        return built, [built.get_data_info(i) for i in range(len(built))]

    def read(self) -> Samples:
        _, listed = self.listed
        sizes = {one["img_path"]: None for one in listed}
        return Samples(sizes, rows=[f"{os.path.dirname(listed[0]['img_path'])}: {len(sizes)} images"])

    @property
    def decoder(self) -> str:
        return (self.loader or {}).get("imdecode_backend", "pillow")

    @cached_property
    def maps(self) -> LabelMaps:
        if self.first is not self:
            return self.first.maps
        return read_label_maps(*self.listed, self.decoder, self.number, self.stored)

    @cached_property
    def labels(self) -> dict[int, int]:
        return {raw: self.maps.label(raw) for raw in sorted(self.maps.pixels)}

    @property
    def counts(self) -> Mapping[str, float]:
        if self.loader is None or not self.samples.sizes or not self.maps.read:
            return {}
        pixels, labels, total = self.maps.pixels, self.labels, self.maps.pixels.total()
        return {
            name: sum(100 * pixels[raw] / total for raw, label in labels.items() if label == i)
            for i, name in enumerate(self.maps.names)
        }

    def faults(self, first: bool, trained: Collection[str]) -> Iterator[Fault]:
        """Faults of the files; without any, of values without a class and of ``reduce_zero_label``."""
        yield from super().faults(first, trained)
        if self.loader is None or self.head.get("num_classes") is None or not self.samples.sizes:
            return
        maps, head = self.maps, self.head
        yield from (fault.within(self.where) for fault in maps.faults)
        if any(fault.grave for fault in maps.faults):
            return
        num_classes, ignored, raw_values = head["num_classes"], head.get("ignore_index", UNLABELLED), set(maps.pixels)
        outputs = max(2, num_classes) if head.get("out_channels") == 1 else num_classes  # a sigmoid has 0 and 1
        outside = [raw for raw, label in self.labels.items() if label != ignored and not 0 <= label < outputs]
        if outputs > UNLABELLED:
            what = f"have {outputs} classes, but mmseg reads them in 8 bits: labels are 0 to 254, and 255 is unlabelled"
            fix = "join classes until there are 255 or fewer, and write maps anew"
        elif set(self.labels.values()) <= {ignored} and self.name in ("train", "val"):
            what = f"have no pixel of a class: there is nothing to {'learn' if self.training else 'evaluate'}"
            fix = "set ignore_index, label_map or reduce_zero_label, or label the images"
        elif outside:
            values = ", ".join(map(str, outside[:10]))
            what = f"hold {values} (first in {maps.first_in[outside[0]]}), which have no class"
            fix = "set num_classes and classes, reduce_zero_label (True: 0 is unlabelled) or ignore_index accordingly"
        elif maps.label_map:
            return
        elif self.training and not maps.reduced and raw_values == {0, UNLABELLED} == {0, ignored}:
            what, fix = "are masks of 0 and 255, but 255 is ignored", "write 1 in place of 255"
        else:
            what, fix = self._zero_fault(num_classes), f"set reduce_zero_label={not maps.reduced} in the data set"
        if what is not None:
            got = f"label maps {what}. Got raw values {_shares(maps.pixels)} in {maps.read} of {maps.total} maps"
            expected = f"num_classes={num_classes}, reduce_zero_label={maps.reduced}, ignore_index={ignored}"
            examples = tuple(dict.fromkeys(maps.first_in[raw] for raw in outside or raw_values))
            yield Fault(f"{got}; expected values for {expected}", self.where, fix=fix, examples=examples)

    def _zero_fault(self, num_classes: int) -> str | None:
        """A fault of ``reduce_zero_label``, if all values have a class; None unless it is certain."""
        default, values = inspect.signature(self.kind).parameters.get("reduce_zero_label"), self.maps.pixels
        usually_reduced = default is not None and default.default is True
        if not self.maps.reduced:
            # If the labels in files of this type were already reduced, unlabelled pixels are 255, not 0.
            if usually_reduced and 0 in values and UNLABELLED not in values:
                return f"have 0 for unlabelled pixels, as is usual for {self.kind.__name__}, but 0 is read as a class"
            return None
        # A validation set, or a type that is usually reduced, may lack the last class by chance. Then only pixels of
        # 255 show that 0 does not mean unlabelled.
        likely = UNLABELLED in values or (self.training and not usually_reduced)
        if likely and set(range(num_classes)) <= set(values) and num_classes not in values:
            return f"have 0 for a class, but 0 is read as unlabelled, and class {num_classes - 1} never occurs"
        return None

    @property
    def shown(self) -> tuple[str, Mapping[str, float]]:
        names, ignored, pixels = dict(enumerate(self.maps.names)), self.head.get("ignore_index", UNLABELLED), {}
        for raw, label in self.labels.items():
            name = names.get(label, "unlabelled" if label == ignored else "NO CLASS")
            pixels[f"{raw} {name}"] = 100 * self.maps.pixels[raw] / self.maps.pixels.total()
        return f"pixels of raw values in {self.maps.read} of {self.maps.total} label maps", pixels


def _shares(pixels: Mapping[int, int]) -> str:
    parts = [f"{raw} ({100 * pixels[raw] / sum(pixels.values()):.2g} %)" for raw in sorted(pixels)]
    rest = [f"... {len(parts) - VALUES_SHOWN} more"] if len(parts) > VALUES_SHOWN else []
    return ", ".join(parts[:VALUES_SHOWN] + rest)


def bars(values: Mapping[str, float], form: str) -> Iterator[str]:
    """A bar per class; for many classes, only the largest and the smallest."""
    width, largest = max(map(len, values), default=0), max(values.values(), default=0) or 1
    rows = [f"  {x:{width}} {form.format(n):>8} {'#' * round(BAR * n / largest)}" for x, n in values.items()]
    if (more := len(rows) - CLASSES_SHOWN) > 0:
        rows = [row for _, row in sorted(zip(values.values(), rows), key=lambda pair: -pair[0])]
        rows[CLASSES_SHOWN // 2 : CLASSES_SHOWN // 2 + more] = [f"  ... {more} more ..."]
    yield from rows


def data_sets(cfg: Config, splits: Sequence[str], number: int | None = FILES_READ) -> list[DataSet]:
    """All data sets of the loaders of some splits, without wrappers; `number`: see `DataSet`."""
    found, first = [], {}
    for split in splits:
        loader, start = cfg.get(f"{split}_dataloader"), len(found)
        for dataset in query.leaf_datasets(loader.dataset) if loader else ():
            kind = query.find_class(DATASETS, dataset["type"], cfg)
            files = {key: value for key, value in dataset.items() if key not in OF_USE}
            decoders = [x for step in dataset.get("pipeline") or () if (x := step.get("imdecode_backend"))]
            one = _format(dataset, kind)(f"{split}_dataloader", dataset, kind, cfg, number)
            one.first = first.setdefault(str([files, keeps_orientation(dataset), decoders]), one)
            found.append(one)
        for i, one in enumerate(found[start:] if len(found) > start + 1 else (), 1):
            one.label = f"{split} {i}"
    return found


def _format(dataset: dict, kind: type | None) -> type[DataSet]:
    if kind is None:
        return DataSet
    if hasattr(kind, "get_label_map"):
        return MapSet
    if query.annotation_file(dataset) and query.is_panoptic(kind):
        return PanopticSet
    if module := kind_of(kind):
        return module.Checks
    return AnnotatedSet if query.annotation_file(dataset) and query.reads_coco(kind) else DataSet
