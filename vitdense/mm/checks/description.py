"""What a data set holds, for `vitdense check`: rows to print, and the faults that its images and counts show."""

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path

from mmengine.config import Config

from vitdense.mm.checks.data import decode_head, label_faults, label_loader, labels_of, read_annotations
from vitdense.mm.config.classes import annotation_file, dataset_classes, is_panoptic, reads_coco
from vitdense.mm.config.limits import as_options, raised_limits
from vitdense.mm.data.faults import Fault
from vitdense.mm.data.images import (
    ImageFile,
    by,
    describe_images,
    evenly_spaced,
    image_faults,
    keeps_orientation,
    read_image_file,
)
from vitdense.mm.data.label_maps import UNLABELLED, build_dataset
from vitdense.mm.errors import join_some

CLASSES_SHOWN = 40
BAR = 40  # characters


class Description:
    """Rows about a data set, and its faults.

    Args:
        split: ``train``, ``val`` or ``test``.
        dataset: Its config.
        kind: Its class.
        cfg: The whole config.
        number: Image files, PNGs and label maps to read; None: all.
        row: Prints a row, while the files are read.

    Attributes:
        num_train: Images of a training; after `faults`.
    """

    def __init__(
        self, split: str, dataset: dict, kind: type, cfg: Config, number: int | None, row: Callable[[str], None]
    ) -> None:
        self.where, self.training = f"{split}_dataloader", split == "train"
        self.dataset, self.kind, self.cfg, self.number, self.row = dataset, kind, cfg, number, row
        self.root, self.prefix = dataset.get("data_root") or "", dataset.get("data_prefix") or {}
        self.num_train = 0

    def faults(self) -> Iterator[Fault]:
        """Print the rows; what is wrong."""
        ann_file, parts = annotation_file(self.dataset), (self.dataset.get("ann_file"), *self.prefix.values())
        if not all(Path(self.root, part or "").exists() for part in parts):
            # Drawn on demand, of a storage service, or a fault that the checks find.
            self.row(f"{self.kind.__name__} in {Path(self.root)}: not on this disk")
        elif self.cfg.get("default_scope") == "mmseg":
            yield from self._label_maps()
        elif ann_file and is_panoptic(self.kind):
            yield from self._segments(ann_file)
        elif ann_file and reads_coco(self.kind):
            yield from self._instances(ann_file)
        else:
            self.row(f"{self.kind.__name__} in {Path(self.root)}: not annotations of COCO instances")

    def _fault(self, what: str, *items: object, fix: str = "", grave: bool = True) -> Fault:
        return Fault(what, self.where, items, fix, grave)

    def _instances(self, ann_file: str) -> Iterator[Fault]:
        found, classes = read_annotations(self.dataset, self.kind), dataset_classes(self.dataset, self.kind)
        images, crowd = found.images, sum(bool(item.get("iscrowd")) for item in found.objects)
        empty = len({image["id"] for image in images} - {item["image_id"] for item in found.objects})
        with_mask, counts = len(found.objects) - len(found.without_mask), found.counts
        self.row(f"{ann_file}: {len(images)} images, {empty} without annotation")
        self.row(f"{len(found.objects)} annotations, {with_mask} with masks, {crowd} of crowds")
        self.row(f"up to {found.densest} objects in an image")
        if limits := raised_limits(self.cfg, found.densest):
            what = (
                f"an image of {ann_file} has {found.densest} objects, more than the model can find or the metric counts"
            )
            yield self._fault(what, fix=f"to raise their limits: --cfg-options {as_options(limits)}", grave=False)
        if self.training:
            self.num_train = found.used(classes, self.dataset.get("filter_cfg") or {})
            self.row(f"{self.num_train} images used for training")
            if not self.num_train:
                yield self._fault(
                    f"no image of {ann_file} is left for training: filter_cfg={self.dataset.get('filter_cfg')} leaves "
                    f"out small ones, and those without a box of the classes"
                )
        folder = os.path.join(self.root, self.prefix.get("img", ""))
        of_file = {os.path.join(folder, image["file_name"]): image for image in images}
        # mmdet makes masks of the loaded size, and leaves out boxes outside the annotated one.
        stored, wrong, turned = keeps_orientation(self.dataset), [], []
        for file in (yield from self._images(list(of_file))):
            annotated = (of_file[file.path]["width"], of_file[file.path]["height"])
            if annotated != (file.stored if stored else file.loaded):
                sizes = f"{by(file.loaded)}, annotated as {by(annotated)}"
                (turned if annotated == file.stored else wrong).append(f"{file.path} ({sizes})")
        if wrong:
            yield self._fault(f"images have another size than in {ann_file}:", *wrong)
        if turned:
            yield self._fault(
                f"images are turned by mm's loader by their EXIF orientation, but {ann_file} has the size before:",
                *turned,
                fix="set color_type='color_ignore_orientation' in LoadImageFromFile of every pipeline, or annotate the "
                "turned images",
            )
        self.row(f"boxes of {len(classes)} classes:")
        self._bars({name: counts.get(name, 0) for name in classes}, "{:.0f}")
        if ignored := [f"{name} ({count})" for name, count in counts.items() if name not in classes]:
            self.row(f"boxes of other categories, not used: {join_some(ignored)}")
        yield from self._absent("box", [name for name in classes if not counts.get(name)])
        yield from (fault.within(f"{self.where}: {ann_file}") for fault in found.faults)

    def _segments(self, ann_file: str) -> Iterator[Fault]:
        found = read_annotations(self.dataset, self.kind, self.number)
        names, things = found.names, sum(bool(one["isthing"]) for one in found.content["categories"])
        self.num_train = len(found.images) * self.training
        self.row(f"{ann_file}: {len(found.images)} images, {len(found.objects)} segments")
        self.row(f"{things} classes of things, {len(names) - things} of stuff")
        folder = os.path.join(self.root, self.prefix.get("img") or "")
        yield from self._images([os.path.join(folder, image["file_name"]) for image in found.images])
        self.row(f"pixels of classes in {found.read} of {len(found.images)} PNGs:")
        self._bars({name: 100 * found.pixels[name] / max(found.pixels.total(), 1) for name in names}, "{:.3g} %")
        yield from self._absent("segment", [name for name, count in found.counts.items() if not count])
        yield from (fault.within(f"{self.where}: {ann_file}") for fault in found.faults)

    def _label_maps(self) -> Iterator[Fault]:
        built = build_dataset(self.where, self.dataset)
        samples = [built.get_data_info(i) for i in range(len(built))]
        self.num_train = len(samples) * self.training
        self.row(f"{samples[0]['img_path'].rsplit('/', 1)[0]}: {len(samples)} images")
        yield from self._images([sample["img_path"] for sample in samples])
        if label_loader(self.dataset) is None:
            return
        if absent := [path for one in samples if (path := one.get("seg_map_path")) and not os.path.isfile(path)]:
            yield self._fault(
                "label maps do not exist; their paths are made of data_prefix.seg_map_path and seg_map_suffix:", *absent
            )
            return
        maps = labels_of(self.where, self.dataset, self.number)
        names = dict(enumerate(built.metainfo.get("classes") or ()))
        ignored = decode_head(self.cfg).get("ignore_index", UNLABELLED)
        self.row(f"pixels of raw values in {maps.read} of {maps.total} label maps:")
        labels = {raw: maps.label(raw) for raw in sorted(maps.pixels)}
        text = {raw: names.get(x, "unlabelled" if x == ignored else "NO CLASS") for raw, x in labels.items()}
        total = maps.pixels.total()
        self._bars({f"{raw} {text[raw]}": 100 * maps.pixels[raw] / total for raw in labels}, "{:.3g} %")
        yield from self._absent("pixel", [names[label] for label in names.keys() - set(labels.values())])
        yield from label_faults(self.where, maps, self.kind, self.cfg)

    def _absent(self, what: str, names: Sequence[str]) -> Iterator[Fault]:
        """A warning of classes of which the training data have none."""
        if self.training and names:
            yield self._fault(f"no {what} of {len(names)} classes: {join_some(names)}", grave=False)

    def _images(self, paths: Sequence[str]) -> Generator[Fault, None, list[ImageFile]]:
        """A row about the image files, and their faults; those that can be read."""
        if absent := [path for path in paths if not os.path.isfile(path)]:
            is_windows = any("\\" in path for path in absent)
            hint = "a backslash separates folders on Windows alone: write /" if is_windows else ""
            yield self._fault(f"of {len(paths)} image files do not exist:", *absent, fix=hint)
        missing = set(absent)
        files = [read_image_file(path) for path in evenly_spaced([x for x in paths if x not in missing], self.number)]
        self.row(f"image files: {len(files)} of {len(paths)} read: {describe_images(files)}")
        yield from (fault.within(self.where) for fault in image_faults(files))
        return [file for file in files if not file.error]

    def _bars(self, values: Mapping[str, float], form: str) -> None:
        """A bar per class; of many classes, the largest and the smallest only."""
        names, half = list(values), CLASSES_SHOWN // 2
        width, largest = max(map(len, names), default=0), max(values.values(), default=0) or 1
        if len(names) > CLASSES_SHOWN:
            names = sorted(names, key=values.get, reverse=True)
            names[half:-half] = [None]
        for name in names:
            if name is None:
                self.row(f"  ... {len(values) - CLASSES_SHOWN} more ...")
            else:
                bar = "#" * round(BAR * values[name] / largest)
                self.row(f"  {name:{width}} {form.format(values[name]):>8} {bar}")
