"""The metadata of programs, and the images on which they are compared or calibrated."""

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from mmdet.models.detectors import MaskFormer
from mmengine.config import Config
from torch import Tensor, nn

from vitdense.layers.mask_branch import MASK_STRIDE
from vitdense.mm.config.query import leaf_datasets
from vitdense.mm.errors import ConfigError
from vitdense.mm.heads.rfdetr.head import RFDETRHead
from vitdense.mm.predictor import Predictor
from vitdense.mm.registry import DATASETS
from vitdense.runtime import fitted, normalised

MOVES = ("Resize", "Crop", "Pad", "Flip", "Rotate")  # parts of names of pipeline steps that move pixels


def of_one_size(cfg: Config, size: tuple[int, int]) -> Config:
    """A config whose test pipeline resizes images to one size (h, w), and has no other step that moves pixels."""
    cfg = copy.deepcopy(cfg)
    for dataset in leaf_datasets(cfg.test_dataloader.dataset):
        reader, *steps = (step for step in dataset.pipeline if not _moves(step))
        dataset.pipeline = [reader, {"type": "Resize", "scale": size[::-1], "keep_ratio": False}, *steps]
    return cfg


def _moves(step: Mapping) -> bool:
    return any(word in step["type"] for word in MOVES)


def describe(predictor: Predictor) -> dict[str, str]:
    """The metadata that `vitdense.runtime` needs to prepare images and read outputs, key -> JSON.

    Keys are `mean`, `std`, `channels` (RGB or BGR; or how many bands the model sees, the first, and how many an image
    has), `resize`, `classes`, `mask_thr`, `mask_stride` (stride of masks in pixels of the padded image; null for masks
    within boxes), `threshold`, `queries`, and `operating_point` if there is one.
    """
    cfg, model, loader = predictor.model.cfg, predictor.model, predictor.reader.loader
    preprocessor = cfg.model.data_preprocessor
    colours = "RGB" if preprocessor.get("bgr_to_rgb") else "BGR"  # mm reads BGR
    described = {
        "mean": preprocessor.get("mean"),
        "std": preprocessor.get("std"),
        "channels": [loader.channels, loader.bands] if loader else colours,
        "classes": predictor.names,
        "mask_thr": cfg.model.get("test_cfg", {}).get("rcnn", {}).get("mask_thr_binary", 0.5),
        "mask_stride": None,
        "threshold": getattr(getattr(model, "decode_head", None), "threshold", None),  # for a single class
        "queries": _describe_queries(model) if isinstance(model, MaskFormer) else None,
    }
    if predictor.operating_point:
        described["operating_point"] = predictor.operating_point.content(predictor.names)
    if isinstance(getattr(model, "bbox_head", None), RFDETRHead):
        described |= {"mask_thr": 0.0, "mask_stride": MASK_STRIDE}  # logits
    moving = [step for step in predictor.dataset.pipeline if _moves(step)]
    match moving if predictor.reader.own_reader is None else None:
        case []:
            described["resize"] = None
        case [{"type": "Resize" | "mmdet.Resize" | "mmseg.Resize", "scale": [int(), int()] as scale, **rest}]:
            described["resize"] = {"scale": scale, "keep_ratio": rest.get("keep_ratio", False)}
        case _:
            pass  # other readers and steps are not in the file, and `vitdense.runtime` refuses it
    return {key: json.dumps(value) for key, value in described.items()}


def _describe_queries(model: nn.Module) -> dict:
    """Options of mmdet's `MaskFormerFusionHead`, with its defaults."""
    cfg = model.panoptic_fusion_head.test_cfg
    panoptic = {
        "score": cfg.get("object_mask_thr", 0.8),
        "iou": cfg.get("iou_thr", 0.8),
        "within": cfg.get("filter_low_score", False),
    }
    return {
        "divisor": model.data_preprocessor.pad_size_divisor,
        "things": model.panoptic_fusion_head.num_things_classes,
        "instances": cfg.get("max_per_image", 100) if cfg.get("instance_on", False) else None,
        "panoptic": panoptic if cfg.get("panoptic_on", True) else None,
    }


class Sample(NamedTuple):
    """An image to compare on."""

    given: Tensor  # input of the file: [1, C, h, w], normalised and not padded; or a photo, [1, H, W, C]
    image: Tensor  # input of the model, [1, C, h, w], from the config's test pipeline
    size: tuple[int, int]  # (H, W) of the photo, in whose pixels objects are
    is_photo: bool = False


def of_photos(paths: Sequence[str], predictor: Predictor, about: Mapping, as_photos: bool = False) -> Iterator[Sample]:
    """Samples of image files. The model's input is from the test pipeline; the program's, described by `about`, from
    `vitdense.runtime`, or `as_photos` the photo."""
    for path in paths:
        pixels = predictor.reader.pixels(path)
        data = predictor.reader.inputs(path, pixels)
        padded = predictor.model.data_preprocessor({key: [value] for key, value in data.items()}, False)["inputs"]
        h, w = data["inputs"].shape[1:]
        image = padded[..., :h, :w]  # [1, C, h, w]
        if "resize" not in about:  # steps that the runtime does not know
            yield Sample(image, image, (h, w))
        elif as_photos:
            yield Sample(torch.from_numpy(pixels)[None], image, pixels.shape[:2], is_photo=True)
        else:
            given = normalised(pixels, fitted(pixels.shape[:2], about["resize"]), about)
            yield Sample(torch.from_numpy(np.ascontiguousarray(given)), image, pixels.shape[:2])


def of_noise(shape: Sequence[int]) -> Sample:
    image = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return Sample(image, image, tuple(shape[2:]))


def paths_of(dataset: Mapping, given: Sequence[str], number: int) -> Sequence[str]:
    """The given files, or `number` files of a data set; a ConfigError if it cannot be read."""
    if given:
        return given
    try:
        images = DATASETS.build({**dataset, "pipeline": []})
    except OSError as error:
        raise ConfigError(f"data of the config cannot be read ({error}); name photos: --images, --calibrate") from error
    step = max(len(images) // number, 1)
    return [images.get_data_info(i)["img_path"] for i in range(0, len(images), step)[:number]]
