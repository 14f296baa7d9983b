"""What a data set holds, for `vitdense check`: rows to print, and the faults that its images and counts show."""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from mmengine.config import Config

from vitdense.mm.checks.data import (
    decode_head,
    examined_images,
    is_voc,
    label_faults,
    label_loader,
    labels_of,
    read_annotations,
    voc_of,
)
from vitdense.mm.checks.pictures import MapPictures, ObjectPictures, Picture
from vitdense.mm.config.classes import annotation_file, dataset_classes, is_panoptic, reads_coco
from vitdense.mm.config.limits import as_options, raised_limits
from vitdense.mm.data.coco import Annotations, has_box
from vitdense.mm.data.faults import Fault
from vitdense.mm.data.images import (
    describe_images,
    evenly_spaced,
    header_size,
    in_threads,
    keeps_orientation,
    read_pixels,
)
from vitdense.mm.data.label_maps import UNLABELLED, LabelMaps, build_dataset, read_label_map
from vitdense.mm.data.panoptic import ids_of_colours
from vitdense.mm.errors import ConfigError, join_some

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
        for_report: Sizes of all images and pictures will be asked for.

    Attributes:
        num_train: Images of a training; this and the others after `faults`.
        rows: The rows, without those of classes.
        counts: Of each class, in `unit`.
        image_sizes: Width and height of the images in pixels.
        object_shares: The side of each object, sqrt(width * height), in shares of the shorter side of its image.
    """

    def __init__(
        self,
        split: str,
        dataset: dict,
        kind: type,
        cfg: Config,
        number: int | None,
        row: Callable[[str], None],
        for_report: bool = False,
    ) -> None:
        self.where, self.training = f"{split}_dataloader", split == "train"
        self.dataset, self.kind, self.cfg, self.number, self._print = dataset, kind, cfg, number, row
        self.for_report, self.drawn = for_report, None
        self.rows, self.counts, self.unit, self.image_sizes, self.object_shares = [], {}, "% of pixels", [], []
        self.stored = keeps_orientation(dataset)
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
        elif is_voc(self.kind):
            yield from self._voc()
        else:
            self.row(f"{self.kind.__name__} in {Path(self.root)}: not annotations of COCO instances")

    def row(self, text: str) -> None:
        """Print a row, and keep it."""
        self.rows.append(text)
        self._print(text)

    def pictures(self, fault: Fault) -> Iterator[Picture]:
        """Of what has a fault, if it is in this data set."""
        is_here = fault.where.startswith(self.where) and (
            not fault.of or self.rows[0].partition(": ")[0] in fault.where
        )
        return self._drawn(self.drawn.of(fault)) if self.drawn and is_here else iter(())

    def examples(self, number: int) -> Iterator[Picture]:
        """Of images of the data set, evenly spaced."""
        return self._drawn(evenly_spaced(list(self.drawn.images), number)) if self.drawn else iter(())

    def _drawn(self, these: Sequence) -> Iterator[Picture]:
        for one in these:
            try:
                picture = self.drawn.draw(one)
            except ConfigError:  # an image that cannot be read, a fault of its own
                continue
            yield picture

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
        if self.for_report:
            self._keep_objects(found, of_file)
        yield from self._images()
        self.row(f"boxes of {len(classes)} classes:")
        self.counts, self.unit = {name: counts.get(name, 0) for name in classes}, "boxes"
        self._bars(self.counts, "{:.0f}")
        if ignored := [f"{name} ({count})" for name, count in counts.items() if name not in classes]:
            self.row(f"boxes of other categories, not used: {join_some(ignored)}")

    def _voc(self) -> Iterator[Fault]:
        found, classes = voc_of(self.dataset), dataset_classes(self.dataset, self.kind) or ()
        self.num_train = len(found.sizes) * self.training
        self.row(f"{len(found.sizes)} images, {found.counts.total()} objects")
        yield from self._images()
        self.row(f"boxes of {len(classes)} classes:")
        self.counts, self.unit = {name: found.counts[name] for name in classes}, "boxes"
        self._bars(self.counts, "{:.0f}")

    def _keep_objects(self, found: Annotations, images: Mapping[str, dict]) -> None:
        """Keep sizes, and what pictures need."""
        self.image_sizes = [(one["width"], one["height"]) for one in found.images]
        short = {one["id"]: min(one["width"], one["height"]) for one in found.images}
        boxes = [(one["bbox"], short.get(one["image_id"], 0)) for one in found.objects if has_box(one)]
        self.object_shares = [math.sqrt(b[2] * b[3]) / side for b, side in boxes if min(*b[2:], side) > 0]
        names = {one["id"]: one["name"] for one in found.content["categories"]}
        self.drawn = ObjectPictures(images, found.objects, names, self.stored)

    def _keep_maps(self, maps: Mapping[str, str], names: Sequence[str], read: Callable[[str], np.ndarray]) -> None:
        """Keep what pictures of label maps or PNGs need, by the paths of their images; see `MapPictures`."""
        sizes = in_threads(partial(header_size, stored=self.stored), list(maps), "sizes")
        self.image_sizes = list(filter(None, sizes))
        self.drawn = MapPictures(maps, names, read, self.stored)

    def _segments(self, ann_file: str) -> Iterator[Fault]:
        found = read_annotations(self.dataset, self.kind, self.number)
        names, things = found.names, sum(bool(one["isthing"]) for one in found.content["categories"])
        self.num_train = len(found.images) * self.training
        self.row(f"{ann_file}: {len(found.images)} images, {len(found.objects)} segments")
        self.row(f"{things} classes of things, {len(names) - things} of stuff")
        folder = os.path.join(self.root, self.prefix.get("img") or "")
        yield from self._images()
        self.row(f"pixels of classes in {found.read} of {len(found.images)} PNGs:")
        self.counts = {name: 100 * found.pixels[name] / max(found.pixels.total(), 1) for name in names}
        self._bars(self.counts, "{:.3g} %")
        if self.for_report:
            self._keep_segments(found, folder)

    def _keep_segments(self, found: Annotations, folder: str) -> None:
        """Keep sizes, and what pictures need."""
        paths = {image["id"]: os.path.join(folder, image["file_name"]) for image in found.images}
        segments, names = Path(self.root, self.prefix.get("seg") or ""), found.names
        index = {one["id"]: names.index(one["name"]) for one in found.content["categories"]}
        maps, of_png = {}, {}
        for one in found.content["annotations"]:
            if path := paths.get(one["image_id"]):
                maps[path] = png = str((segments / os.path.relpath(path, folder)).with_suffix(".png"))
                of_png[png] = {part["id"]: index.get(part["category_id"], len(names)) for part in one["segments_info"]}

        def read(png: str) -> np.ndarray:
            values, places = np.unique(ids_of_colours(read_pixels(png)), return_inverse=True)
            return np.array([of_png[png].get(value, len(names)) for value in values.tolist()])[places]  # [H, W]

        self._keep_maps(maps, names, read)

    def _label_maps(self) -> Iterator[Fault]:
        built = build_dataset(self.where, self.dataset)
        samples = [built.get_data_info(i) for i in range(len(built))]
        self.num_train = len(samples) * self.training
        self.row(f"{samples[0]['img_path'].rsplit('/', 1)[0]}: {len(samples)} images")
        yield from self._images()
        if label_loader(self.dataset) is None:
            return
        maps = labels_of(self.where, self.dataset, self.number)
        names = dict(enumerate(maps.names))
        ignored = decode_head(self.cfg).get("ignore_index", UNLABELLED)
        self.row(f"pixels of raw values in {maps.read} of {maps.total} label maps:")
        labels = {raw: maps.label(raw) for raw in sorted(maps.pixels)}
        text = {raw: names.get(x, "unlabelled" if x == ignored else "NO CLASS") for raw, x in labels.items()}
        total = maps.pixels.total()
        shares = {raw: 100 * maps.pixels[raw] / total for raw in labels}
        self._bars({f"{raw} {text[raw]}": shares[raw] for raw in labels}, "{:.3g} %")
        self.counts = {name: sum(shares[raw] for raw in labels if labels[raw] == x) for x, name in names.items()}
        if self.for_report:
            paths = {one["img_path"]: one["seg_map_path"] for one in samples if one.get("seg_map_path")}
            self._keep_labels(paths, list(names.values()), maps)
        yield from label_faults(self.where, maps, self.kind, self.cfg)

    def _keep_labels(self, paths: Mapping[str, str], names: Sequence[str], maps: LabelMaps) -> None:
        """Keep sizes, and what pictures need."""
        backend = label_loader(self.dataset).get("imdecode_backend", "pillow")

        def read(path: str) -> np.ndarray:
            try:
                raw = read_label_map(path, backend)
            except Exception as error:  # decoders have no error in common
                raise ConfigError(f"{path} cannot be read") from error
            if raw.ndim != 2:
                raise ConfigError(f"{path} has {raw.ndim} dimensions, expected 2")
            values, places = np.unique(raw, return_inverse=True)
            return np.array([maps.label(int(value)) for value in values])[places]  # [H, W]

        self._keep_maps(paths, names, read)

    def _images(self) -> Iterator[Fault]:
        """A row about the image files; their faults."""
        found = examined_images(self.where, self.dataset, self.kind, self.number)
        self.row(f"image files: {len(found.read)} of {found.total} read: {describe_images(found.read)}")
        yield from found.faults

    def _bars(self, values: Mapping[str, float], form: str) -> None:
        """A bar per class; of many classes, the largest and the smallest only."""
        names, half = list(values), CLASSES_SHOWN // 2
        width, largest = max(map(len, names), default=0), max(values.values(), default=0) or 1
        if len(names) > CLASSES_SHOWN:
            names = sorted(names, key=values.get, reverse=True)
            names[half:-half] = [None]
        for name in names:
            if name is None:
                self._print(f"  ... {len(values) - CLASSES_SHOWN} more ...")
            else:
                bar = "#" * round(BAR * values[name] / largest)
                self._print(f"  {name:{width}} {form.format(values[name]):>8} {bar}")
