"""Predict on image files with detectors (mmdet) and segmentors (mmseg): pictures, COCO-format JSON, label maps."""

import glob
import inspect
import json
import mimetypes
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from mmengine.config import Config
from mmengine.dist import all_gather_object, get_rank, get_world_size, is_distributed, is_main_process
from mmengine.logging import print_log
from mmengine.registry import DATASETS
from mmengine.utils import track_iter_progress
from PIL import Image

from vitdense.files import atomic_write, check_writable
from vitdense.mm.config.query import find_class
from vitdense.mm.data.images import SUFFIXES
from vitdense.mm.data.panoptic import colours_of_ids
from vitdense.mm.data.predictions import CocoPredictions
from vitdense.mm.errors import ConfigError, join_some
from vitdense.mm.precision import Inference
from vitdense.mm.predictor import Predictor
from vitdense.mm.processes import StopSignal
from vitdense.results.result import Result, write_picture

RESULTS, TRAINING = "predictions.json", "annotations.json"


class PredictionError(ConfigError):
    """Some images failed; the predictions of the others are written."""

    status = 1  # exit status


@dataclass(eq=False)
class Task:
    """Writes predictions. Subclasses define `add`, for an image file, and `save`, for the predictions so far.

    Args:
        images: All images, including the ones of other processes.
        root: Folder of the images, to write a training set instead of pictures; None to write pictures.
        model, out_dir, as_dataset, as_indices, write: See `predict`.
    """

    model: Predictor
    out_dir: Path
    images: Sequence[Path]
    root: Path | None = None
    as_dataset: bool = False
    as_indices: bool = False
    write: Callable[[Path, Result], None] | None = None

    def __post_init__(self) -> None:
        self.label_maps = label_map_names(self.images, self.root)
        self.found: dict[Path, Any] = {}  # image -> its entry in the JSON file
        self.out_file = self.out_dir / (RESULTS if self.root is None else TRAINING)
        # Processes that share the images write their own files until the end.
        self.part = self.out_dir / f".predictions.{get_rank()}.json" if is_distributed() else self.out_file

    def draw(self, image: Path, result: Result) -> None:
        if self.root is None and result.image is not None:
            result.save(self.out_dir / (f"{image.name}.png" if image.suffix == ".npy" else image.name))
        if self.write is not None:
            self.write(image, result)

    def write_label_map(self, image: Path, pixels: np.ndarray) -> str:
        """Write a label map or ids; returns the name of the file."""
        write_picture(self.out_dir / "labels" / self.label_maps[image], Image.fromarray(pixels))
        return self.label_maps[image]

    def save(self) -> None:
        """Write the predictions so far."""

    def finish(self) -> Path:
        """Write the predictions of all processes in the order of the images; returns the path."""
        of_all = zip_longest(*all_gather_object([*self.found.items()]))
        self.found = dict(one for row in of_all for one in row if one is not None)
        if is_distributed():
            self.part.unlink(missing_ok=True)
        self.part = self.out_file
        if is_main_process():
            self.save()
        return self.out_file


class Detection(Task):
    """Writes a picture per image, with boxes, masks and scores, and one COCO-format JSON file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        meta = self.model.model.dataset_meta
        self.predictions = CocoPredictions(self.model.names, self.model.dataset, self.root, meta)

    def add(self, image: Path) -> None:
        pixels = self.model.reader.pixels(image)
        (sample,) = self.model.samples([image], [pixels], self.model.score_thr)
        result = self.model.result(sample, pixels, self.model.score_thr)
        self.predictions.add(image, result, pixels.shape[:2])
        scores = sample.pred_instances.scores.tolist()  # also below the threshold
        self.found[image] = len(scores), max(scores, default=0.0), self.predictions.found[image]
        self.draw(image, result)

    def save(self) -> None:
        self.predictions.found = {image: found for image, (*_, found) in self.found.items()}
        self.predictions.write(self.part, self.as_dataset or self.root is not None)

    def finish(self) -> Path:
        super().finish()
        if is_main_process() and self.root is None:
            self.predictions.report_new_images()
        numbers, highest, found = zip(*self.found.values()) if self.found else ((), (), ())
        kept = sum(one.number for one in found)
        print_log(
            f"{kept} of {sum(numbers)} detections have a score from {np.min(self.model.score_thr):.3g} on "
            f"(--score-thr), the highest {max(highest, default=0.0):.3f}. Output: {self.out_dir}"
        )
        if self.root is not None:
            rows = self.predictions.annotations(self.predictions.images)
            kinds = {type(one.get("segmentation")) for one in rows}  # run-length codes are dicts, corners lists
            labels = "--boxes " if type(None) in kinds else "--oriented " if list in kinds else ""
            labels = "--keypoints " if self.model.model.dataset_meta.get("keypoints") else labels
            options = f"{labels}--train {quote(str(self.out_file))} --images {quote(str(self.root))}"
            print_log(f"as training data: vitdense new detection {options}")
        return self.out_file


class Panoptic(Task):
    """Writes a picture per image, with segments and a legend, COCO's PNG of ids under ``labels/``, and one JSON file in
    COCO's panoptic format."""

    def __post_init__(self) -> None:
        super().__post_init__()
        meta = self.model.model.dataset_meta
        self.ids = CocoPredictions(self.model.names, self.model.dataset, meta=meta).category_ids

    def add(self, image: Path) -> None:
        result = self.model(image)
        self.draw(image, result)
        name = self.write_label_map(image, colours_of_ids(result.panoptic))
        segments = [
            {"id": one["id"], "category_id": self.ids[one["label"]], "area": int((result.panoptic == one["id"]).sum())}
            for one in result.segments
        ]
        self.found[image] = {"image": image.name, "file_name": name, "segments_info": segments}

    def save(self) -> None:
        things = self.model.model.panoptic_fusion_head.num_things_classes
        named = enumerate(zip(self.ids, self.model.names))
        categories = [{"id": i, "name": name, "isthing": int(label < things)} for label, (i, name) in named]
        content = json.dumps({"annotations": [*self.found.values()], "categories": categories})
        with atomic_write(self.part) as scratch:
            scratch.write_text(content, encoding="utf-8")


class Segmentation(Task):
    """Writes a picture per image, with classes and a legend, and a label map under ``labels/``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        names, dataset = self.model.names, self.model.dataset
        self.raw = raw_values(names, find_class(DATASETS, dataset.type, self.model.model.cfg), dataset)
        self.values = np.array([i if self.as_indices else self.raw[name] for i, name in enumerate(names)])

    def add(self, image: Path) -> None:
        result = self.model(image)
        self.draw(image, result)
        dtype = np.uint8 if self.values.max() < 256 else np.uint16
        self.write_label_map(image, self.values[result.semantic].astype(dtype))

    def finish(self) -> Path:
        if self.root is not None:
            classes = self.out_dir / "classes.txt"
            with atomic_write(classes) as scratch:
                scratch.write_text("".join(f"{name}\n" for name in self.raw), encoding="utf-8")
            options = f"--images {quote(str(self.root))} --labels {quote(str(self.out_dir / 'labels'))}"
            options += f" --classes {quote(str(classes))}{' --reduce-zero-label' * min(self.raw.values())}"
            print_log(f"as training data: vitdense new segmentation {options}")
        whose = "indices of classes" if self.as_indices else "as in the data set's own (--indices)"
        print_log(f"values in label maps: {self.values[0]} for {self.model.names[0]!r}, {whose}")
        return self.out_dir


def raw_values(classes: Sequence[str], kind: type, dataset: Mapping) -> dict[str, int]:
    """Class -> value in the label maps of a data set: from 0, or from 1 with ``reduce_zero_label``.

    If the data set does not name all `classes` of the model, these are numbered instead.
    """
    names = dataset.get("values") or kind.METAINFO.get("classes", ())
    default = inspect.signature(kind).parameters.get("reduce_zero_label")
    reduced = dataset.get("reduce_zero_label", default is not None and default.default)
    return {name: i for i, name in enumerate(names if set(classes) <= set(names) else classes, int(bool(reduced)))}


def predict(
    cfg: Config,
    checkpoint: str,
    images: Sequence[str | Path],
    out_dir: Path,
    inference: Inference = Inference(),  # noqa: B008 -- frozen
    as_dataset: bool = False,
    as_indices: bool = False,
    as_training: bool = False,
    classes: Sequence[str] | None = None,
    write: Callable[[Path, Result], None] | None = None,
) -> Path:
    """Predict on images.

    Args:
        cfg, checkpoint, classes: See `Predictor`, also for errors.
        images: Image files, folders and patterns; see `list_images`.
        out_dir: Output folder. It gets a picture per image, of the same name.
            A detector also writes ``predictions.json``: COCO results, ``[{image_id, category_id, bbox, score,
            segmentation}, ...]``, which ``COCO(ann_file).loadRes`` takes; see `CocoPredictions` for the ids.
            A segmentor also writes ``labels/<stem>.png`` per image, with the values of the data set's own label maps,
            uint8 (uint16 above 255); see `raw_values` and `label_map_names`. A panoptic model writes ids there, and
            segments in the JSON file; see `Panoptic`.
        inference: Options of prediction. `score_thr` applies to pictures and to the JSON file; AP needs 0.
        as_dataset: ``predictions.json`` is a COCO data set instead, for ``pycocotools.coco.COCO``: it also has images
            and categories, and its ``annotations`` have scores.
        as_indices: Label maps have class indices from 0 instead.
        as_training: Write data for `vitdense new`, and no pictures. A detector writes ``annotations.json``, a COCO data
            set with new image ids, of detections with at least `score_thr`. A segmentor writes ``labels/``, label maps
            in the folders of the images, and ``classes.txt``, the names of their values. Images are named relative to
            their common folder.
        write: Called with every image and what was found in it, to write more.

    Returns:
        The JSON file of a detector or panoptic model, the folder of a segmentor.

    Raises:
        ConfigError: Images are missing, or outputs cannot be written, or would overwrite each other or the images.
        PredictionError: Some images cannot be read or predicted; raised after all others are done.
    """
    found = list_images(images)
    kind, root = checked(cfg, found, out_dir, as_training)
    task = kind(Predictor(cfg, checkpoint, inference, classes), out_dir, found, root, as_dataset, as_indices, write)
    return run(task, found)


def checked(cfg: Config, images: Sequence[Path], out_dir: Path, as_training: bool) -> tuple[type[Task], Path | None]:
    """The task for a config's model, and the common folder of the images for a training set; see `predict`."""
    is_panoptic = "panoptic_head" in cfg.model and cfg.model.test_cfg.get("panoptic_on", True)
    kind = Panoptic if is_panoptic else Segmentation if cfg.get("default_scope") == "mmseg" else Detection
    if as_training and is_panoptic:
        raise ConfigError("--as-dataset: got a panoptic model, expected a detector or a segmentor")
    root = Path(os.path.commonpath([image.absolute().parent for image in images])) if as_training else None
    _check_outputs(images, out_dir, with_label_maps=kind is not Detection, root=root)
    return kind, root


def run(task: Task, images: Sequence[Path]) -> Any:
    """Do a task with the images of this process; returns what its `finish` does."""
    images = images[get_rank() :: get_world_size()]
    failed, next_save = [], 10
    try:
        for i, image in enumerate(track_iter_progress(images, file=sys.stdout)):
            try:
                task.add(image)
            except Exception as error:  # one image, or the disk for its picture; models and decoders can raise anything
                reason = next(iter(str(error).strip().splitlines()), "")
                failed.append(f"{image} ({type(error).__name__}: {reason.removeprefix(f'image {image} ')})")
            if i == next_save:  # growing steps, as every save writes all again
                task.save()
                next_save = i * 5 // 4
    except (KeyboardInterrupt, StopSignal):
        task.save()
        raise
    result = task.finish()
    if failed:
        raise PredictionError(
            f"predictions are in {result}; {len(failed)} of {len(images)} images failed: {join_some(failed)}"
        )
    return result


def list_images(paths: Sequence[str | Path]) -> list[Path]:
    """List image files. Folders and patterns such as ``photos/**/*.jpg`` are replaced by their image files, sorted.

    Sub-folders are not searched, which is logged. A path without an image is a ConfigError.
    """
    images: list[Path] = []
    for path in paths:
        if Path(path).is_dir():
            inside = list(Path(path).iterdir())
            if folders := sorted(entry.name for entry in inside if entry.is_dir()):
                print_log(
                    f"folder {path}: {len(folders)} folders in it are not searched: {join_some(folders)}; name them, "
                    f"or give a quoted pattern, {str(Path(path, '**/*'))!r}"
                )
            images += _image_files(inside, f"folder {path}")
        elif glob.has_magic(str(path)) and not Path(path).exists():
            images += _image_files(map(Path, glob.iglob(str(path), recursive=True)), f"pattern {path}")
        elif not Path(path).is_file():
            raise ConfigError(f"image {path} does not exist, or is no file")
        elif (mimetypes.guess_type(Path(path).name)[0] or "").startswith("video/"):
            raise ConfigError(f"image {path} is a video; docs/results.md shows how to predict on its frames")
        else:
            images.append(Path(path))
    return list(dict.fromkeys(images))


def _image_files(paths: Iterable[Path], where: str) -> list[Path]:
    paths = sorted(paths)
    found = [path for path in paths if path.suffix.lower() in SUFFIXES]
    found = found or [path for path in paths if path.suffix == ".npy"]
    if not found:
        raise ConfigError(f"{where} has no image, expected files with {', '.join(SUFFIXES)}")
    return found


def label_map_names(images: Sequence[Path], root: Path | None) -> dict[Path, str]:
    """Image -> file name of its label map: the stem and ``.png``, or the whole name and ``.png`` for equal stems.

    For a training set, the name is the path relative to `root`, the folder of the images, as `vitdense new` expects.
    """
    if root is not None:
        return {image: str(Path(os.path.relpath(image, root)).with_suffix(".png")) for image in images}
    stems = Counter(image.stem for image in images)
    return {image: f"{image.name if stems[image.stem] > 1 else image.stem}.png" for image in images}


def _check_outputs(images: Sequence[Path], out_dir: Path, with_label_maps: bool, root: Path | None) -> None:
    check_writable(out_dir / (RESULTS if root is None else TRAINING), "--out-dir")
    if with_label_maps:
        check_writable(out_dir / "labels" / "any.png", "--out-dir")
    if with_label_maps and root is not None and out_dir.resolve().is_relative_to(root.resolve()):
        raise ConfigError(
            f"--as-dataset: label maps in {out_dir} would be among the images of {root}; name another folder"
        )
    folders = {out_dir.resolve(), (out_dir / "labels").resolve()}
    if any(image.parent.resolve() in folders for image in images):
        raise ConfigError(f"--out-dir: the outputs would overwrite the images in {out_dir}; choose another folder")
    outputs = [image.name if root is None else os.path.relpath(image, root) for image in images]
    if with_label_maps:
        outputs = label_map_names(images, root).values()
    if repeated := [name for name, count in Counter(outputs).items() if count > 1]:
        raise ConfigError(
            f"several images would be written to the same file; predict them separately: {join_some(repeated)}"
        )
