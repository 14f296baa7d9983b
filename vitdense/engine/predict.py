"""Detect on image files: pictures with boxes, masks and scores, and one COCO-format JSON file."""

import json
from collections.abc import Sequence
from pathlib import Path

import mmcv
import numpy as np
import torch
from mmdet.apis import inference_detector
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.registry import VISUALIZERS
from mmengine.utils import track_iter_progress
from pycocotools import mask as rle
from torch import nn

from vitdense.backbones.base import MMENGINE_GLOBALS
from vitdense.engine.build import build_model
from vitdense.engine.config import ConfigError
from vitdense.files import whole_file
from vitdense.weights.load import fit_whole
from vitdense.weights.read import read


def load_detector(cfg: Config, checkpoint: str, device: str) -> nn.Module:
    """The detector of a config with exactly the weights of a checkpoint, in eval mode.

    Raises:
        ConfigError: The config is not one of a detector.
        CheckpointNotFoundError: There is no such file.
        CheckpointMismatchError: It does not fit the model, or does not name its classes.
    """
    if cfg.get("default_scope", "mmdet") != "mmdet":
        raise ConfigError(f"prediction draws detections; {cfg.filename} is a config of {cfg.default_scope}")
    cfg.model.backbone.init_cfg = None  # the checkpoint holds the backbone
    model = build_model(cfg)
    saved = read(checkpoint, allow=MMENGINE_GLOBALS)
    state, _ = fit_whole(model, saved, source=checkpoint)
    model.load_state_dict(state, strict=True)
    model.cfg = cfg
    model.dataset_meta = saved.get("meta", {}).get("dataset_meta")
    if model.dataset_meta is None:
        raise ConfigError(f"{checkpoint} does not name its classes (meta.dataset_meta); train it with tools/train.py")
    return model.to(device).eval()


def predict(
    cfg: Config, checkpoint: str, images: Sequence[Path], out_dir: Path, score_thr: float = 0.3, device: str = "cpu"
) -> Path:
    """Detect on images.

    Args:
        cfg: Of the detector.
        checkpoint: Its weights.
        images: Files; every one must be there.
        out_dir: Gets a picture of the same name per image, and ``predictions.json``: COCO format, with all
            detections and their scores, loadable by pycocotools.
        score_thr: Detections below are not drawn.
        device: ``cpu``, ``cuda`` or ``cuda:N``.

    Returns:
        The JSON file.

    Raises:
        ConfigError: Images are missing, two have the same name, or `out_dir` is their own folder; or see
            `load_detector`.
    """
    missing = [str(path) for path in images if not path.is_file()]
    if missing or not images:
        raise ConfigError(f"{len(missing)} of {len(images)} images are not files: {', '.join(missing[:10])}")
    if len({path.name for path in images}) < len(images):
        raise ConfigError(
            "two images have the same file name, so one picture would overwrite the other; run them apart"
        )
    if any((out_dir / path.name).resolve() == path.resolve() for path in images):
        raise ConfigError(f"the pictures would overwrite the images in {out_dir}; choose another --out-dir")
    model = load_detector(cfg, checkpoint, device)
    visualizer = VISUALIZERS.build(cfg.visualizer)
    visualizer.dataset_meta = model.dataset_meta
    result = {
        "images": [],
        "annotations": [],
        "categories": [{"id": i + 1, "name": name} for i, name in enumerate(model.dataset_meta["classes"])],
    }
    for i, path in enumerate(track_iter_progress(list(images)), 1):
        with torch.no_grad():
            sample = inference_detector(model, str(path))
        height, width = sample.ori_shape[:2]
        result["images"].append({"id": i, "file_name": path.name, "height": height, "width": width})
        result["annotations"] += annotations(sample, image_id=i, first_id=len(result["annotations"]) + 1)
        with whole_file(out_dir / path.name) as scratch:
            visualizer.add_datasample(
                path.stem,
                mmcv.imread(str(path), channel_order="rgb"),
                data_sample=sample,
                draw_gt=False,
                pred_score_thr=score_thr,
                out_file=str(scratch),
            )
    out_file = out_dir / "predictions.json"
    with whole_file(out_file) as scratch:
        scratch.write_text(json.dumps(result))
    return out_file


def annotations(sample: DetDataSample, image_id: int, first_id: int) -> list[dict]:
    """Detections of one image as COCO annotations with a score; boxes are [x, y, width, height] in pixels."""
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
