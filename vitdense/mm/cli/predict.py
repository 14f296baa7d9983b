"""Predict on image files with detectors (mmdet) and segmentors (mmseg): pictures, COCO-format JSON, label maps."""

import glob
import inspect
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

import mmcv
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.dist import all_gather_object, get_rank, get_world_size, is_distributed, is_main_process
from mmengine.logging import print_log
from mmengine.registry import DATASETS, VISUALIZERS
from mmengine.structures import BaseDataElement
from mmengine.utils import track_iter_progress
from PIL import Image
from torch import nn
from torchvision.datasets.folder import IMG_EXTENSIONS

from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.load import fit_whole
from vitdense.files import atomic_write
from vitdense.inspect import draw
from vitdense.mm.config.load import build_model, hook_configs
from vitdense.mm.config.saved import OF_RESULTS, log_differences
from vitdense.mm.config.walk import class_heads, drop_weights, find_class, leaf_datasets, loads_labels
from vitdense.mm.data.coco import CocoPredictions
from vitdense.mm.errors import ConfigError, join_some
from vitdense.mm.train.checkpoints import read_checkpoint


class PredictionError(ConfigError):
    """Some images failed; the predictions of the others are written."""

    status = 1  # of the process


def load_model(cfg: Config, checkpoint: str, device: str) -> nn.Module:
    """Build the detector or segmentor of a config with the weights of a checkpoint, in eval mode.

    Its `dataset_meta` comes from the checkpoint: `classes`, and `palette` if there is one.

    Raises:
        ConfigError: The checkpoint has no class names.
        CheckpointNotFoundError: There is no such file.
        CheckpointMismatchError: The checkpoint does not fit the model.
    """
    allow_pickle = any(hook.get("allow_pickle", False) for hook in hook_configs(cfg))  # of ExactLoadHook
    saved = read_checkpoint(checkpoint, "cpu", allow_pickle)
    log_differences(saved, cfg, OF_RESULTS)
    drop_weights(cfg.model)
    model = build_model(cfg)  # which writes into the config
    meta = saved.get("meta", {})
    if "CLASSES" in meta:  # files published before mmdet 3 and mmseg 1
        meta = {"dataset_meta": {"classes": meta["CLASSES"], "palette": meta.get("PALETTE")}}
    if not meta.get("dataset_meta"):
        raise ConfigError(f"{checkpoint} has no class names (meta.dataset_meta); train it with tools/train.py")
    model.dataset_meta = meta["dataset_meta"]
    try:
        state, _ = fit_whole(model, saved, source=checkpoint)
    except CheckpointMismatchError as error:
        trained = len(model.dataset_meta["classes"])
        others = {head.get("num_classes") for _, head in class_heads(cfg.model)} - {None, trained}
        if not others:
            raise
        raise ConfigError(
            f"{checkpoint} was trained on {trained} classes, but heads of {cfg.filename} have "
            f"{' and '.join(map(str, sorted(others)))}. Give the config in its work folder. Or, if the heads follow a "
            f"data set whose annotation file is not on this machine, state metainfo=dict(classes=(...)) of the "
            f"training data"
        ) from error
    model.load_state_dict(state, strict=True)
    model.cfg = cfg
    return model.to(device).eval()


class Task:
    """Base of both tasks. Subclasses define `add`, for one image, `save` for what is done, and `finish`."""

    def __init__(self, model: nn.Module, out_dir: Path) -> None:
        self.model, self.out_dir = model, out_dir
        self.classes = model.dataset_meta["classes"]
        self.dataset = next(leaf_datasets(model.cfg.test_dataloader.dataset))
        self.pipeline = Compose([step for step in self.dataset.pipeline if not loads_labels(step)])

    def infer(self, image: Path) -> BaseDataElement:
        """Predict on an image file; a data sample of mmdet or mmseg."""
        with torch.no_grad():
            data = self.pipeline({"img_path": str(image), "img_id": 0})
            (sample,) = self.model.test_step(pseudo_collate([data]))
        return sample


class Detection(Task):
    """Per image, a picture with boxes, masks and scores; one COCO-format JSON file."""

    def __init__(self, model: nn.Module, out_dir: Path, score_thr: float, as_dataset: bool) -> None:
        super().__init__(model, out_dir)
        self.score_thr, self.as_dataset = score_thr, as_dataset
        self.out_file = out_dir / "predictions.json"
        # Processes that share the images have files of their own until the end.
        self.part = out_dir / f".predictions.{get_rank()}.json" if is_distributed() else self.out_file
        # Pictures go to `out_dir`, and to none of the config's backends.
        self.visualizer = VISUALIZERS.build({**model.cfg.visualizer, "vis_backends": None})
        self.visualizer.dataset_meta = model.dataset_meta
        self.predictions = CocoPredictions(self.classes, self.dataset)
        self.num_found, self.highest = 0, 0.0

    def add(self, image: Path, pixels: np.ndarray) -> None:
        """Predict on an image file with `pixels` [H, W, 3] (uint8 RGB), and write its picture."""
        sample = self.infer(image)
        found = sample.pred_instances
        self.num_found += len(found)
        self.highest = max([self.highest, *found.scores.tolist()])
        sample.pred_instances = found[found.scores >= self.score_thr]
        self.predictions.add(image, sample)
        with atomic_write(self.out_dir / image.name) as scratch:  # draws scores above -1: all that are left
            self.visualizer.add_datasample(
                image.stem, pixels, sample, draw_gt=False, pred_score_thr=-1, out_file=str(scratch)
            )

    def save(self) -> None:
        """Write the detections so far."""
        self.predictions.write(self.part, self.as_dataset)

    def finish(self) -> Path:
        """Write the detections of all images, also of other processes; the path of the file."""
        if is_distributed():
            parts = all_gather_object((list(self.predictions.found.items()), self.num_found, self.highest))
            found = (item for row in zip_longest(*(part[0] for part in parts)) for item in row if item is not None)
            self.predictions.found = dict(found)
            self.num_found, self.highest = sum(part[1] for part in parts), max(part[2] for part in parts)
        if is_main_process():
            self.predictions.write(self.out_file, self.as_dataset)
            self.predictions.report_new_images()
        if is_distributed():
            self.part.unlink(missing_ok=True)
        kept = sum(len(found) for _, found in self.predictions.found.values())
        print_log(
            f"{kept} of {self.num_found} detections have a score of at least {self.score_thr} (--score-thr); the "
            f"highest is {self.highest:.3f}. Pictures: {self.out_dir}"
        )
        return self.out_file


class Segmentation(Task):
    """Per image, a picture with its classes and a legend, and a label map under ``labels/``."""

    def __init__(self, model: nn.Module, out_dir: Path, as_indices: bool) -> None:
        super().__init__(model, out_dir)
        self.values = (
            np.arange(len(self.classes))
            if as_indices
            else raw_values(self.classes, find_class(DATASETS, self.dataset.type, model.cfg), self.dataset)
        )
        palette = model.dataset_meta.get("palette") or ()  # mm accepts palettes of another length
        fits = len(palette) == len(self.classes)
        self.palette = np.array(palette, np.uint8) if fits else draw.distinct_colours(len(self.classes))

    def add(self, image: Path, pixels: np.ndarray) -> None:
        """Predict on an image file with `pixels` [H, W, 3] (uint8 RGB), and write its picture and label map."""
        labels = self.infer(image).pred_sem_seg.data[0].cpu().numpy().astype(np.int64)  # floats after a sigmoid
        blended = draw.overlay(pixels, labels, self.palette)
        shares = draw.class_shares(labels, len(self.classes))
        _write(self.out_dir / image.name, draw.with_legend(blended, self.classes, self.palette, shares))
        dtype = np.uint8 if self.values.max() < 256 else np.uint16
        _write(self.out_dir / "labels" / f"{image.stem}.png", self.values[labels].astype(dtype))

    def save(self) -> None:
        """Nothing is left to write."""

    def finish(self) -> Path:
        """The output folder."""
        print_log(
            f"values in label maps: {self.values[0]} for {self.classes[0]!r}, as in the data set's own (--indices)"
        )
        return self.out_dir


def raw_values(classes: Sequence[str], kind: type, dataset: Mapping) -> np.ndarray:
    """The values that a segmentation data set's own label maps have for the classes of a model, ``[num_classes]``.

    With ``reduce_zero_label`` they begin at 1; where its config chooses some of its classes, they are those of all.

    Args:
        classes: Of the model.
        kind: Class of the data set.
        dataset: Its config.
    """
    names = list(kind.METAINFO.get("classes", ()))
    known = names if set(classes) <= set(names) else list(classes)
    default = inspect.signature(kind).parameters.get("reduce_zero_label")
    reduced = dataset.get("reduce_zero_label", default is not None and default.default)
    return np.array([known.index(name) for name in classes]) + bool(reduced)


def _write(path: Path, picture: np.ndarray) -> None:
    """Write [H, W, 3] uint8 RGB, or [H, W] uint8 or uint16. JPEG without artefacts at letters and edges."""
    with atomic_write(path) as scratch:
        is_jpeg = path.suffix.lower() in (".jpg", ".jpeg")
        Image.fromarray(picture).save(scratch, **({"quality": 95, "subsampling": 0} if is_jpeg else {}))


def predict(
    cfg: Config,
    checkpoint: str,
    images: Sequence[str | Path],
    out_dir: Path,
    score_thr: float = 0.3,
    device: str = "cpu",
    as_dataset: bool = False,
    as_indices: bool = False,
) -> Path:
    """Predict on images.

    Args:
        cfg: Config of the detector or segmentor.
        checkpoint: Its weights.
        images: Image files, folders and patterns; see `list_images`.
        out_dir: Output folder. It gets a picture per image, of the same name.
            A detector also writes ``predictions.json``: COCO results, ``[{image_id, category_id, bbox, score,
            segmentation}, ...]``, which ``COCO(ann_file).loadRes`` takes; see `CocoPredictions` for the ids.
            A segmentor also writes ``labels/<stem>.png`` per image, with the values of the data set's own label maps,
            uint8 (uint16 above 255); see `raw_values`.
        score_thr: Minimum score of detections, 0 to 1, in pictures and in the JSON file. AP needs 0.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        as_dataset: ``predictions.json`` is a COCO data set instead, for ``pycocotools.coco.COCO``: it has the names of
            images and categories too, and its ``annotations`` have scores.
        as_indices: Label maps have the indices of the classes instead, from 0.

    Returns:
        The JSON file of a detector, the folder of a segmentor.

    Raises:
        ConfigError: The config is not one of mmdet or mmseg; images are missing, or outputs would overwrite each other
            or the images; see `load_model`.
        PredictionError: After the other images are done: some cannot be read or predicted.
    """
    scope = cfg.get("default_scope", "mmdet")
    if scope not in ("mmdet", "mmseg"):
        raise ConfigError(f"{cfg.filename}: got default_scope={scope!r}, expected 'mmdet' or 'mmseg'")
    images = list_images(images)
    _check_outputs(images, out_dir, with_label_maps=scope == "mmseg")
    images = images[get_rank() :: get_world_size()]
    model = load_model(cfg, checkpoint, device)
    task = (
        Detection(model, out_dir, score_thr, as_dataset)
        if scope == "mmdet"
        else Segmentation(model, out_dir, as_indices)
    )
    failed, next_save = [], 10
    try:
        for i, image in enumerate(track_iter_progress(images, file=sys.stdout)):
            try:
                task.add(image, read_image(image))
            except Exception as error:  # one image, or the disk for its picture; models and decoders can raise anything
                failed.append(f"{image} ({type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')})")
            if i == next_save:  # the work of writing again stays in proportion
                task.save()
                next_save = i * 5 // 4
    except KeyboardInterrupt:
        task.save()
        raise
    result = task.finish()
    if failed:
        raise PredictionError(
            f"predictions are in {result}; {len(failed)} of {len(images)} images failed: {join_some(failed)}"
        )
    return result


def list_images(paths: Sequence[str | Path]) -> list[Path]:
    """Image files. Folders are replaced by the image files in them, sorted; sub-folders are not searched. Patterns such
    as ``photos/**/*.jpg`` are replaced by the image files that match, sorted.

    Raises:
        ConfigError: A path does not exist, or a folder or pattern has no image.
    """
    images: list[Path] = []
    for path in paths:
        if Path(path).is_dir():
            images += _image_files(Path(path).iterdir(), f"folder {path}")
        elif glob.has_magic(str(path)) and not Path(path).exists():
            images += _image_files(map(Path, glob.iglob(str(path), recursive=True)), f"pattern {path}")
        elif Path(path).is_file():
            images.append(Path(path))
        else:
            raise ConfigError(f"image {path} does not exist, or is no file")
    return list(dict.fromkeys(images))


def _image_files(paths: Iterable[Path], where: str) -> list[Path]:
    found = sorted(path for path in paths if path.suffix.lower() in IMG_EXTENSIONS)
    if not found:
        raise ConfigError(f"{where} has no image, expected files with {', '.join(IMG_EXTENSIONS)}")
    return found


def read_image(path: Path) -> np.ndarray:
    """The pixels of an image file: [H, W, 3] uint8 RGB. Raises the error of the decoder."""
    if not path.is_file():  # a pipe would wait for ever
        raise ConfigError("no file")
    with Image.open(path) as image:
        image.load()  # raises for a truncated file; OpenCV would fill the rest with grey
    return mmcv.imread(str(path), channel_order="rgb")


def _check_outputs(images: Sequence[Path], out_dir: Path, with_label_maps: bool) -> None:
    """No output may overwrite an image or another output; a label map has the stem of its image."""
    folders = {out_dir.resolve(), (out_dir / "labels").resolve()}
    if any(image.parent.resolve() in folders for image in images):
        raise ConfigError(f"--out-dir: the outputs would overwrite the images in {out_dir}; choose another folder")
    counts = Counter(image.stem if with_label_maps else image.name for image in images)
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise ConfigError(
            f"several images would be written to the same file; predict them separately: {', '.join(repeated[:10])}"
        )
