"""`python -m vitdense check`: what training checks before its start, and a report of the data."""

import copy
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from mmengine.config import Config
from mmengine.device import get_device
from mmengine.registry import DATASETS

from vitdense.files import atomic_write
from vitdense.mm.checks import dry_step, findings
from vitdense.mm.checks.base import Finding
from vitdense.mm.checks.label_maps import check_label_maps, check_sizes
from vitdense.mm.checks.schedule import warm_up_warnings
from vitdense.mm.config.arguments import make_parser
from vitdense.mm.config.base import Asked, run_passes
from vitdense.mm.config.classes import annotation_file, dataset_classes, is_panoptic, reads_coco
from vitdense.mm.config.limits import as_options, raised_limits
from vitdense.mm.config.load import config_of
from vitdense.mm.config.passes import TRAINING
from vitdense.mm.config.query import find_class, leaf_datasets, loads_labels
from vitdense.mm.data.coco import count_used, examine, read_annotations
from vitdense.mm.data.images import (
    FILES_READ,
    ImageFile,
    by,
    describe_images,
    evenly_spaced,
    image_faults,
    keeps_orientation,
    read_image_file,
)
from vitdense.mm.data.label_maps import UNLABELLED, build_dataset, decode_head, read_label_maps
from vitdense.mm.data.panoptic import examine_panoptic, read_panoptic
from vitdense.mm.data.pictures import draw_batch
from vitdense.mm.errors import join_some
from vitdense.mm.train.console import USER_ERRORS, exit_on_user_error, explain

CLASSES_SHOWN = 40
BAR = 40  # characters


def main(argv: Sequence[str]) -> int:
    """The command; its exit status: 0, or 2 if there are errors."""
    parser = make_parser(__doc__)
    parser.prog = "python -m vitdense check"
    parser.add_argument("--all", action="store_true", help=f"read every image file, not only {FILES_READ} per data set")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="draw a batch as the model will see it")
    parser.add_argument("--write", type=Path, metavar="FILE.py", help="write the config with everything resolved")
    parser.add_argument("--passes", action="store_true", help="print what changes the config before a training")
    args, changes = parser.parse_args(argv), []
    with exit_on_user_error():
        cfg = config_of(args, changes)
        if args.passes:
            run_passes(TRAINING, copy.deepcopy(cfg), Asked(), changes)
            print(*(f"{change.by}: {change.key}: {change.old} -> {change.new}" for change in changes), "", sep="\n")
        status = report(cfg, args.all)
        if args.pictures and status == 0:
            print("drew", *draw_batch(cfg, args.pictures))
        if args.write:
            with atomic_write(args.write) as scratch:
                scratch.write_text(cfg.pretty_text, encoding="utf-8")
            print(f"wrote {args.write}")
    return status


class Report:
    """A table, printed row by row, and the faults that were found, printed at the end."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self.num_train = 0  # images

    def row(self, name: str, text: str) -> None:
        """Print a row; `name` is empty where it continues the row above."""
        print(f"{name:12}{text}", flush=True)

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Add an error that a user can fix to the faults, and continue."""
        try:
            yield
        except USER_ERRORS as error:
            self.errors.append(explain(error))

    def add(self, found: Iterable[Finding]) -> None:
        """Add errors and warnings."""
        for one in found:
            (self.errors if isinstance(one, Exception) else self.warnings).append(str(one))

    def finish(self) -> int:
        """Print the faults, each once, also where the test set is the validation set; the exit status."""
        errors, warnings = (
            [line for line in dict.fromkeys(lines) if not line.startswith("test_") or f"val_{line[5:]}" not in lines]
            for lines in (self.errors, self.warnings)
        )
        print("", *(f"warning: {line}" for line in warnings), *(f"error: {line}" for line in errors), sep="\n")
        print(f"errors: {len(errors)}, warnings: {len(warnings)}")
        return 2 if errors else 0


def report(cfg: Config, all_files: bool = False) -> int:
    """Check a config and describe its data.

    Args:
        cfg: From `load_config`.
        all_files: Read every image file and label map, not only `FILES_READ` per data set.

    Returns:
        The exit status: 0, or 2 if there are errors.
    """
    result, number, described = Report(), None if all_files else FILES_READ, {}
    result.row("config", f"{cfg.filename}: {cfg.model.type}, {cfg.get('default_scope', 'mmdet')}")
    given = {split: cfg.get(f"{split}_cfg") is not None for split in ("train", "val", "test")}
    splits = tuple(split for split in given if given[split] and cfg.get(f"{split}_dataloader"))
    with result.collect():
        result.add(findings(cfg, splits))
    for split in splits:
        for dataset in leaf_datasets(cfg[f"{split}_dataloader"].dataset):
            files = str([dataset.get(key) for key in ("type", "data_root", "ann_file", "data_prefix", "indices")])
            if files in described:
                result.row(split, f"as {described[files]}")
                continue
            described[files] = split
            with result.collect():
                _describe(result, split, dataset, cfg, number)
    result.warnings += warm_up_warnings(cfg, result.num_train)
    if not result.errors and "train" in splits:
        result.row("dry step", f"losses and gradients of a small batch, and its validation, on {get_device()} ...")
        result.add(dry_step.find(cfg, splits))
    return result.finish()


def _describe(result: Report, split: str, dataset: dict, cfg: Config, number: int | None) -> None:
    """Rows and faults of a data set."""
    kind = find_class(DATASETS, dataset["type"], cfg)
    if kind is None:
        return  # a fault that the checks found
    root = Path(dataset.get("data_root") or "")
    parts = [dataset.get("ann_file") or "", *(prefix or "" for prefix in (dataset.get("data_prefix") or {}).values())]
    if not all((root / part).exists() for part in parts):  # drawn on demand, of a storage service, or a fault
        result.row(split, f"{kind.__name__} in {root}: not on this disk")
        return
    if cfg.get("default_scope") == "mmseg":
        _describe_label_maps(result, split, dataset, kind, cfg, number)
    elif (ann_file := annotation_file(dataset)) and is_panoptic(kind):
        _describe_segments(result, split, dataset, Path(ann_file), number)
    elif ann_file and reads_coco(kind):
        _describe_annotations(result, split, dataset, Path(ann_file), dataset_classes(dataset, kind), cfg, number)
    else:
        result.row(split, f"{kind.__name__} in {root}: not annotations of COCO instances")


def _describe_annotations(
    result: Report, split: str, dataset: dict, ann_file: Path, classes: Sequence[str], cfg: Config, number: int | None
) -> None:
    where, content = f"{split}_dataloader", read_annotations(ann_file)
    found = examine(content)
    result.row(split, f"{ann_file}: {len(found.images)} images, {found.empty} without annotation")
    result.row("", f"{found.annotations} annotations, {found.with_mask} with masks, {found.crowd} of crowds")
    result.row("", f"up to {found.densest} objects in an image")
    if limits := raised_limits(cfg, found.densest):
        result.warnings.append(
            f"{where}: an image of {ann_file} has {found.densest} objects, more than the model can find or the metric "
            f"counts; to raise their limits: --cfg-options {as_options(limits)}"
        )
    if split == "train":
        used = count_used(content, classes, dataset.get("filter_cfg") or {})
        result.num_train += used
        result.row("", f"{used} images used for training")
        if not used:
            result.errors.append(
                f"{where}: no image of {ann_file} is left for training: filter_cfg={dataset.get('filter_cfg')} leaves "
                f"out small ones, and those without a box of the classes"
            )
    folder = os.path.join(dataset.get("data_root") or "", (dataset.get("data_prefix") or {}).get("img", ""))
    of_file = {os.path.join(folder, image["file_name"]): image for image in found.images}
    read = _describe_images(result, where, list(of_file), number)
    # mmdet makes masks of the loaded size, and leaves out boxes outside the annotated one.
    stored = keeps_orientation(dataset)
    wrong, turned = [], []
    for file in read:
        image = of_file[file.path]
        annotated = (image["width"], image["height"])
        if annotated != (file.stored if stored else file.loaded):
            sizes = f"{by(file.loaded)}, annotated as {by(annotated)}"
            (turned if annotated == file.stored else wrong).append(f"{file.path} ({sizes})")
    if wrong:
        result.errors.append(f"{where}: {len(wrong)} images have another size than in {ann_file}: {join_some(wrong)}")
    if turned:
        result.errors.append(
            f"{where}: mm's loader turns {len(turned)} images by their EXIF orientation, but {ann_file} has the size "
            f"before: {join_some(turned)}; set color_type='color_ignore_orientation' in LoadImageFromFile of every "
            f"pipeline, or annotate the turned images"
        )
    result.row("", f"boxes of {len(classes)} classes:")
    _print_bars(result, {name: found.boxes.get(name, 0) for name in classes}, "{:.0f}")
    if ignored := [f"{name} ({count})" for name, count in found.boxes.items() if name not in classes]:
        result.row("", f"boxes of other categories, not used: {join_some(ignored)}")
    if split == "train" and (absent := [name for name in classes if not found.boxes.get(name)]):
        result.warnings.append(f"{where}: no box of {len(absent)} classes: {join_some(absent)}")
    result.errors += [f"{where}: {ann_file}: {line}" for line in found.errors]
    result.warnings += [f"{where}: {ann_file}: {line}" for line in found.warnings]


def _describe_segments(result: Report, split: str, dataset: dict, ann_file: Path, number: int | None) -> None:
    where, prefix = f"{split}_dataloader", dataset.get("data_prefix") or {}
    root = Path(dataset.get("data_root") or "")
    found = examine_panoptic(read_panoptic(ann_file), root / (prefix.get("seg") or ""), number)
    result.num_train += len(found.images) * (split == "train")
    result.row(split, f"{ann_file}: {len(found.images)} images, {found.segments.total()} segments")
    result.row("", f"{len(found.things)} classes of things, {len(found.stuff)} of stuff")
    folder = root / (prefix.get("img") or "")
    _describe_images(result, where, [str(folder / image["file_name"]) for image in found.images], number)
    total = max(found.pixels.total(), 1)
    result.row("", f"pixels of classes in {found.read} of {len(found.images)} PNGs:")
    names = (*found.things, *found.stuff)
    _print_bars(result, {name: 100 * found.pixels[name] / total for name in names}, "{:.3g} %")
    if split == "train" and (absent := [name for name in names if not found.segments[name]]):
        result.warnings.append(f"{where}: no segment of {len(absent)} classes: {join_some(absent)}")
    result.errors += [f"{where}: {ann_file}: {line}" for line in found.errors]
    result.warnings += [f"{where}: {ann_file}: {line}" for line in found.warnings]


def _describe_label_maps(
    result: Report, split: str, dataset: dict, kind: type, cfg: Config, number: int | None
) -> None:
    where = f"{split}_dataloader"
    built = build_dataset(where, dataset)
    samples = [built.get_data_info(i) for i in range(len(built))]
    result.num_train += len(samples) * (split == "train")
    result.row(split, f"{samples[0]['img_path'].rsplit('/', 1)[0]}: {len(samples)} images")
    label_maps = {sample["img_path"]: sample.get("seg_map_path") for sample in samples}
    _describe_images(result, where, list(label_maps), number)
    loader = next(filter(loads_labels, dataset.get("pipeline", ())), None)
    if loader is None:
        return
    if absent := [path for path in label_maps.values() if not os.path.isfile(path)]:
        result.errors.append(
            f"{where}: {len(absent)} label maps do not exist; their paths are made of data_prefix.seg_map_path and "
            f"seg_map_suffix: {join_some(absent)}"
        )
        return
    maps = read_label_maps(where, built, loader, number, keeps_orientation(dataset))
    with result.collect():
        check_sizes(where, maps)
    names = dict(enumerate(built.metainfo.get("classes") or ()))
    ignored = decode_head(cfg).get("ignore_index", UNLABELLED)
    total = maps.pixels.total()
    result.row("", f"pixels of raw values in {maps.read} of {maps.total} label maps:")
    shares = {
        f"{raw} {names.get(label, 'unlabelled' if label == ignored else 'NO CLASS')}": 100 * maps.pixels[raw] / total
        for raw, label in ((raw, maps.label(raw)) for raw in sorted(maps.pixels))
    }
    _print_bars(result, shares, "{:.3g} %")
    if split == "train" and (absent := names.keys() - {maps.label(raw) for raw in maps.pixels}):
        result.warnings.append(f"{where}: no pixel of {len(absent)} classes: {join_some([names[i] for i in absent])}")
    if number is None:
        check_label_maps(where, dataset, kind, cfg, number)


def _describe_images(result: Report, where: str, paths: Sequence[str], number: int | None) -> list[ImageFile]:
    """A row about the image files, and their faults; those that can be read."""
    if absent := [path for path in paths if not os.path.isfile(path)]:
        hint = (
            "; a backslash separates folders on Windows alone: write /" if any("\\" in path for path in absent) else ""
        )
        fault = f"{len(absent)} of {len(paths)} image files do not exist: {join_some(absent)}{hint}"
        result.errors.append(f"{where}: {fault}")
    missing = set(absent)
    present = [path for path in paths if path not in missing]
    files = [read_image_file(path) for path in evenly_spaced(present, number)]
    result.row("", f"image files: {len(files)} of {len(paths)} read: {describe_images(files)}")
    errors, warnings = image_faults(files)
    result.errors += [f"{where}: {line}" for line in errors]
    result.warnings += [f"{where}: {line}" for line in warnings]
    return [file for file in files if not file.error]


def _print_bars(result: Report, values: Mapping[str, float], form: str) -> None:
    """A bar per class; of many classes, the largest and the smallest only."""
    names, half = list(values), CLASSES_SHOWN // 2
    if len(names) > CLASSES_SHOWN:
        names = sorted(names, key=values.get, reverse=True)
    width, largest = max(map(len, names), default=0), max(values.values(), default=0) or 1
    for i, name in enumerate(names):
        if half <= i < len(names) - half and len(names) > CLASSES_SHOWN:
            if i == half:
                result.row("", f"  ... {len(names) - CLASSES_SHOWN} more ...")
            continue
        bar = "#" * round(BAR * values[name] / largest)
        result.row("", f"  {name:{width}} {form.format(values[name]):>8} {bar}")
