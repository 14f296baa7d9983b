"""Predict on image files: pictures, and the predictions as data, of detectors (mmdet) and segmentors (mmseg)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import mmcv
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import VISUALIZERS
from mmengine.utils import track_iter_progress
from PIL import Image
from torch import nn

from vitdense import draw
from vitdense.backbones.base import MMENGINE_GLOBALS
from vitdense.engine.build import build_model
from vitdense.engine.config import ConfigError
from vitdense.engine.label_maps import loads_labels
from vitdense.engine.preflight import leaf_datasets
from vitdense.files import atomic_write
from vitdense.weights.load import fit_whole
from vitdense.weights.read import read

if TYPE_CHECKING:  # a user of one framework need not own the other: each is imported by its task alone
    from mmdet.structures import DetDataSample


def load_model(cfg: Config, checkpoint: str, device: str) -> nn.Module:
    """The detector or segmentor of a config with exactly the weights of a checkpoint, in eval mode.

    Its `dataset_meta` is what the checkpoint says of the data set: `classes`, and `palette` where it has one.

    Raises:
        ConfigError: The checkpoint does not name its classes.
        CheckpointNotFoundError: There is no such file.
        CheckpointMismatchError: It does not fit the model.
    """
    if "backbone" in cfg.model:
        cfg.model.backbone.init_cfg = None  # the checkpoint holds the backbone
    model = build_model(cfg)
    saved = read(checkpoint, allow=MMENGINE_GLOBALS)
    state, _ = fit_whole(model, saved, source=checkpoint)
    model.load_state_dict(state, strict=True)
    model.cfg = cfg
    model.dataset_meta = _dataset_meta(saved.get("meta", {}))
    if model.dataset_meta is None:
        raise ConfigError(f"{checkpoint} does not name its classes (meta.dataset_meta); train it with tools/train.py")
    return model.to(device).eval()


def _dataset_meta(meta: Mapping) -> dict | None:
    """Classes and palette of a checkpoint; those published before mmdet 3 and mmseg 1 name them in capitals."""
    if "CLASSES" in meta:
        return {"classes": meta["CLASSES"], "palette": meta.get("PALETTE")}
    return meta.get("dataset_meta")


class Task(Protocol):
    """What becomes of a model's predictions, image by image."""

    @staticmethod
    def outputs(out_dir: Path, image: Path) -> tuple[Path, ...]:
        """The files that are written for one image."""

    def add(self, image: Path) -> None:
        """Predict on an image and write its files."""

    def finish(self) -> Path:
        """Write what is of all images; the file or folder to look at."""


class Detection:
    """A picture with boxes, masks and scores per image, and one COCO-format JSON file."""

    def __init__(self, model: nn.Module, out_dir: Path, score_thr: float) -> None:
        self.model, self.out_dir, self.score_thr = model, out_dir, score_thr
        self.visualizer = VISUALIZERS.build(model.cfg.visualizer)
        self.visualizer.dataset_meta = model.dataset_meta
        self.result = {
            "images": [],
            "annotations": [],
            "categories": [{"id": i + 1, "name": name} for i, name in enumerate(model.dataset_meta["classes"])],
        }

    @staticmethod
    def outputs(out_dir: Path, image: Path) -> tuple[Path, ...]:
        return (out_dir / image.name,)

    def add(self, image: Path) -> None:
        from mmdet.apis import inference_detector

        with torch.no_grad():
            sample = inference_detector(self.model, str(image))
        height, width = sample.ori_shape[:2]
        image_id = len(self.result["images"]) + 1
        first_id = len(self.result["annotations"]) + 1
        self.result["images"].append({"id": image_id, "file_name": image.name, "height": height, "width": width})
        self.result["annotations"] += annotations(sample, image_id, first_id)
        (picture,) = self.outputs(self.out_dir, image)
        with atomic_write(picture) as scratch:
            self.visualizer.add_datasample(
                image.stem,
                mmcv.imread(str(image), channel_order="rgb"),
                data_sample=sample,
                draw_gt=False,
                pred_score_thr=self.score_thr,
                out_file=str(scratch),
            )

    def finish(self) -> Path:
        out_file = self.out_dir / "predictions.json"
        with atomic_write(out_file) as scratch:
            scratch.write_text(json.dumps(self.result))
        return out_file


class Segmentation:
    """A picture with the classes over it and a legend per image, and its label map; the latter under ``labels/``."""

    def __init__(self, model: nn.Module, out_dir: Path) -> None:
        self.model, self.out_dir = model, out_dir
        self.classes = model.dataset_meta["classes"]
        outputs = getattr(model, "num_classes", len(self.classes))
        if outputs != len(self.classes):
            raise ConfigError(
                f"the checkpoint names {len(self.classes)} classes, but the model's decode_head has {outputs}; its "
                f"meta.dataset_meta must be of the data set it was trained on"
            )
        palette = model.dataset_meta.get("palette")
        # mm has names of palettes too ("random"), and one may be that of other classes: only drawing suffers.
        fits = palette is not None and not isinstance(palette, str) and len(palette) == len(self.classes)
        self.palette = np.array(palette, np.uint8) if fits else draw.distinct_colours(len(self.classes))
        steps = next(leaf_datasets(model.cfg.test_dataloader.dataset)).pipeline
        self.pipeline = Compose([step for step in steps if not loads_labels(step)])

    @staticmethod
    def outputs(out_dir: Path, image: Path) -> tuple[Path, ...]:
        return out_dir / image.name, out_dir / "labels" / f"{image.stem}.png"

    def labels(self, image: Path) -> np.ndarray:
        """[H, W]: the class indices of an image file."""
        with torch.no_grad():
            (sample,) = self.model.test_step(pseudo_collate([self.pipeline({"img_path": str(image)})]))
        return sample.pred_sem_seg.data[0].cpu().numpy().astype(np.int64)  # of a sigmoid they are floats

    def add(self, image: Path) -> None:
        labels = self.labels(image)
        picture, label_map = self.outputs(self.out_dir, image)
        over = draw.overlay(mmcv.imread(str(image), channel_order="rgb"), labels, self.palette, ignore=None)
        shares = draw.class_shares(labels, len(self.classes))
        _write(picture, draw.with_legend(over, self.classes, self.palette, shares))
        _write(label_map, labels.astype(np.uint8 if len(self.classes) <= 256 else np.uint16))

    def finish(self) -> Path:
        return self.out_dir


def _write(path: Path, picture: np.ndarray) -> None:
    """Write [H, W, 3] uint8 RGB, or [H, W] uint8 or uint16; JPEG at a quality that keeps letters and edges clean."""
    with atomic_write(path) as scratch:
        Image.fromarray(picture).save(scratch, quality=95, subsampling=0)


TASKS: dict[str, type[Task]] = {"mmdet": Detection, "mmseg": Segmentation}  # by default_scope


def predict(
    cfg: Config, checkpoint: str, images: Sequence[Path], out_dir: Path, score_thr: float = 0.3, device: str = "cpu"
) -> Path:
    """Predict on images.

    Args:
        cfg: Of the detector or segmentor.
        checkpoint: Its weights.
        images: Files; every one must be there.
        out_dir: Gets a picture of the same name per image. Of a detector also ``predictions.json``: COCO format, with
            all detections and their scores, loadable by pycocotools. Of a segmentor also ``labels/<stem>.png`` per
            image: the index of every pixel's class, uint8 (uint16 for more than 256 classes). Indices start at 0,
            also where the files of the data set start at 1 (``reduce_zero_label``).
        score_thr: Detections below are not drawn.
        device: ``cpu``, ``cuda`` or ``cuda:N``.

    Returns:
        The JSON file of a detector, the folder of a segmentor.

    Raises:
        ConfigError: The config is not one of mmdet or mmseg; images are missing, or their outputs would overwrite one
            another or the images; or see `load_model`.
    """
    scope = cfg.get("default_scope", "mmdet")
    if scope not in TASKS:
        raise ConfigError(f"{cfg.filename}: got default_scope={scope!r}, expected one of {', '.join(TASKS)}")
    task = TASKS[scope]
    _check_images(images, {path: task.outputs(out_dir, path) for path in images})
    model = load_model(cfg, checkpoint, device)
    writer: Task = Detection(model, out_dir, score_thr) if task is Detection else Segmentation(model, out_dir)
    for path in track_iter_progress(list(images)):
        writer.add(path)
    return writer.finish()


def _check_images(images: Sequence[Path], outputs: Mapping[Path, Sequence[Path]]) -> None:
    """Every image must be a file, and every output one of its own."""
    missing = [str(path) for path in images if not path.is_file()]
    if missing or not images:
        raise ConfigError(f"{len(missing)} of {len(images)} images are not files: {', '.join(missing[:10])}")
    inputs = {path.resolve() for path in images}
    taken: dict[Path, Path] = {}
    for image in images:
        for output in outputs[image]:
            if output.resolve() in inputs:
                raise ConfigError(
                    f"the pictures would overwrite the images in {output.parent}; choose another --out-dir"
                )
            if output in taken:
                raise ConfigError(f"{taken[output]} and {image} would both be written to {output}; run them apart")
            taken[output] = image


def annotations(sample: "DetDataSample", image_id: int, first_id: int) -> list[dict]:
    """Detections of one image as COCO annotations with a score; boxes are [x, y, width, height] in pixels."""
    from pycocotools import mask as rle

    found = sample.pred_instances.cpu().numpy()
    masks = found.masks if "masks" in found else [None] * len(found)
    out = []
    for i, (box, score, label, mask) in enumerate(zip(found.bboxes, found.scores, found.labels, masks)):
        x1, y1, x2, y2 = (float(v) for v in box)
        annotation = {
            "id": first_id + i,
            "image_id": image_id,
            "category_id": int(label) + 1,
            "bbox": [x1, y1, x2 - x1, y2 - y1],
            "area": (x2 - x1) * (y2 - y1),
            "iscrowd": 0,
            "score": float(score),
        }
        if mask is not None:
            coded = rle.encode(np.asfortranarray(mask, dtype=np.uint8))
            annotation["segmentation"] = {"size": coded["size"], "counts": coded["counts"].decode()}
            annotation["area"] = int(rle.area(coded))
        out.append(annotation)
    return out
