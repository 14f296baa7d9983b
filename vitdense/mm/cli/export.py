"""Export of detectors (mmdet), or their maps, and of segmentors (mmseg)."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from mmdet.models.dense_heads import Mask2FormerHead
from mmdet.models.dense_heads.base_dense_head import BaseDenseHead
from mmdet.models.detectors import MaskFormer
from mmengine.config import Config
from mmengine.structures import InstanceData
from torch import Tensor, nn

from vitdense.files import atomic_write
from vitdense.inspect.export import export_program, save_onnx, save_program
from vitdense.mm.config.walk import leaf_datasets
from vitdense.mm.errors import ConfigError
from vitdense.mm.export.compare import BOUNDS, Bounds, compare_classes, compare_maps, compare_objects
from vitdense.mm.export.detectors import Detector, fix, pad, pad_as
from vitdense.mm.heads.rfdetr.head import RFDETRHead
from vitdense.mm.heads.rfdetr.masks import MASK_STRIDE
from vitdense.mm.predictor import Predictor, read_pixels
from vitdense.runtime import ENGINES, Output, fitted, normalised, objects

FORMATS = ("pt2", "onnx")
EXAMPLE, UNSEEN = (2, 320, 384), (1, 97, 131)  # batch, height, width: to export with, and to compare at
PHOTOS, CALIBRATION = 3, 100  # of the test data to compare at; of the training data
MOVES = ("Resize", "Crop", "Pad", "Flip", "Rotate")  # in names of steps of a pipeline that move pixels


class Segmentor(nn.Module):
    """Image ``[B, 3, H, W]`` to logits ``[B, classes, H, W]``; of queries (EoMT, PMT, Mask2Former) to the sums of
    their masks, weighted by their classes.

    Args:
        model: Encoder-decoder of mmseg. Its image is normalised.

    Raises:
        ConfigError: Images to test are padded to one size.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        preprocessor = model.data_preprocessor
        padding = preprocessor.test_cfg or {}
        if padding.get("size") is not None:
            raise ConfigError(
                f"data_preprocessor.test_cfg: got {padding}, expected size_divisor: programs pad to a multiple of it"
            )
        self.divisor, self.value = padding.get("size_divisor") or 1, float(preprocessor.pad_val)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        head, (h, w) = self.model.decode_head, (image.shape[2], image.shape[3])
        image = pad(image, self.divisor, self.value)  # [B, 3, H', W']
        size, maps = (image.shape[2], image.shape[3]), self.model.extract_feat(image)
        if isinstance(head, Mask2FormerHead):
            classes, masks = (layers[-1] for layers in head(maps, None))  # [B, Q, classes + 1] and [B, Q, h, w]
            shares = F.interpolate(masks, size, mode="bilinear", align_corners=False).sigmoid()  # [B, Q, H', W']
            logits = torch.einsum("bqc, bqhw -> bchw", classes.softmax(-1)[..., :-1], shares)
        else:
            logits = F.interpolate(head(maps), size, mode="bilinear", align_corners=head.align_corners)
        return {"logits": logits[..., :h, :w]}  # [B, classes, H, W]


class MaskTransformer(nn.Module):
    """Image ``[B, 3, H, W]`` to what a Mask2Former, an EoMT or a PMT predicts: logits of classes
    ``[B, Q, classes + 1]`` and of masks ``[B, Q, h, w]``, which cover the image, padded to the config's
    `pad_size_divisor`. `vitdense.runtime.Program` goes on.

    Args:
        model: Of mmdet. Its image is normalised.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        classes, masks = self.model.panoptic_head(self.model.extract_feat(pad_as(self.model, image)), None)
        return {"classes": classes[-1], "masks": masks[-1]}


class DetectorMaps(nn.Module):
    """Image ``[B, 3, H, W]`` to the maps of the neck, and what the RPN or a dense head predicts on them.

    Boxes are not decoded.

    Args:
        model: Detector of mmdet. Its image is normalised, and padded as the config says.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        head = getattr(model, "rpn_head", getattr(model, "bbox_head", None))
        self.head = head if isinstance(head, BaseDenseHead) else None

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        maps = self.model.extract_feat(image)
        outs = {f"map{i}": x for i, x in enumerate(maps)}
        if self.head is not None:
            for name, levels in zip(("scores", "boxes", "centers"), self.head(maps)):
                outs.update({f"{name}{i}": x for i, x in enumerate(levels)})
        return outs


def describe(predictor: Predictor, static: tuple[int, int] | None) -> dict[str, str]:
    """What the program expects of an image, and what `vitdense.runtime` makes of its outputs, as JSON by key: `mean`,
    `std`, `channels`, `resize`, `classes`, `mask_thr`, `mask_stride` (pixels of the padded image between those of
    masks; null for masks of boxes), `threshold` and `queries`.

    Args:
        predictor: The model.
        static: Size (h, w) of the images of the program, if it is one.
    """
    cfg, model = predictor.model.cfg, predictor.model
    preprocessor = cfg.model.data_preprocessor
    moved = [step for step in predictor.dataset.pipeline if any(word in step["type"] for word in MOVES)]
    described = {
        "mean": preprocessor.get("mean"),
        "std": preprocessor.get("std"),
        "channels": "RGB" if preprocessor.get("bgr_to_rgb") else "BGR",  # mm reads BGR
        "classes": predictor.names,
        "mask_thr": cfg.model.get("test_cfg", {}).get("rcnn", {}).get("mask_thr_binary", 0.5),
        "mask_stride": None,
        "threshold": getattr(getattr(model, "decode_head", None), "threshold", None),  # of a single class
        "queries": _describe_queries(model) if isinstance(model, MaskFormer) else None,
    }
    if isinstance(getattr(model, "bbox_head", None), RFDETRHead):
        described |= {"mask_thr": 0.0, "mask_stride": MASK_STRIDE}  # logits
    if static:
        moved = [{"type": "Resize", "scale": static[::-1]}]
    match moved:  # of other steps the file says nothing, and `vitdense.runtime` refuses it
        case []:
            described["resize"] = None
        case [{"type": "Resize" | "mmdet.Resize" | "mmseg.Resize", "scale": [int(), int()] as scale, **rest}]:
            described["resize"] = {"scale": scale, "keep_ratio": rest.get("keep_ratio", False)}
    return {key: json.dumps(value) for key, value in described.items()}


def _describe_queries(model: nn.Module) -> dict:
    """What mmdet's `MaskFormerFusionHead` makes of queries, with its defaults."""
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
    """An image to compare at.

    Attributes:
        given: What the file takes: `image`, or the photo, ``[1, H, W, 3]`` uint8.
        image: What the model takes, normalised and not padded, ``[1, 3, h, w]``.
        size: Of the photo, (H, W), or of the image.
    """

    given: Tensor
    image: Tensor
    size: tuple[int, int]


def _photo(path: str, about: Mapping) -> Sample:
    pixels = read_pixels(path)
    size = pixels.shape[:2]
    image = normalised(pixels, fitted(size, about["resize"]), about)
    return Sample(torch.from_numpy(pixels)[None], torch.from_numpy(np.ascontiguousarray(image)), size)


def _image(predictor: Predictor, path: str, static: tuple[int, int] | None) -> Sample:
    data = predictor.read(path)
    padded = predictor.model.data_preprocessor({key: [value] for key, value in data.items()}, False)["inputs"]
    h, w = data["inputs"].shape[1:]
    image = padded[..., :h, :w]  # [1, 3, h, w]
    if static:
        image = F.interpolate(image, static, mode="bilinear")  # [1, 3, *static]
    return Sample(image, image, tuple(image.shape[2:]))


def _noise(shape: Sequence[int]) -> Sample:
    image = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return Sample(image, image, tuple(shape[2:]))


def _paths(dataset: dict, given: Sequence[str], number: int) -> Sequence[str]:
    """The photos given, or this many of a data set."""
    if given:
        return given
    from vitdense.mm.registry import DATASETS

    try:
        images = DATASETS.build({**dataset, "pipeline": []})
    except OSError as error:
        raise ConfigError(f"data of the config cannot be read ({error}); name photos: --images, --calibrate") from error
    step = max(len(images) // number, 1)
    return [images.get_data_info(i)["img_path"] for i in range(0, len(images), step)[:number]]


def export(
    cfg: Config,
    checkpoint: str,
    path: Path,
    to: str,
    static: tuple[int, int] | None = None,
    precision: str = "float32",
    maps: bool = False,
    images: Sequence[str] = (),
    preprocessing: bool = False,
    calibration: Sequence[str] = (),
) -> str:
    """Export a detector or a segmentor, and compare the result with the model.

    Args:
        cfg: Its config.
        checkpoint: Its weights.
        path: File to write.
        to: One of `FORMATS`.
        static: Image (h, w) in pixels, for one image of this size; all sizes and batches when None.
        precision: ``float32``; ``float16``, of weights and maps; or ``int8``, see `vitdense.inspect.int8`.
        maps: Of a detector, its maps instead of its objects.
        images: Photos to compare a detector's objects on, or any program in int8 or of photos; the first of the
            config's test data when empty.
        preprocessing: The program takes photos; see `vitdense.inspect.photos.of_photos`.
        calibration: Photos for int8; some of the config's training data when empty.

    Returns:
        What was written and compared.

    Raises:
        ConfigError: onnx is not installed; the detector is none that can be exported whole; there are no photos; or the
            result differs from the model by more than `BOUNDS`: nothing is written. See also `load_model`.
    """
    if to == "onnx" and not all(map(find_spec, ("onnx", "onnxscript", "onnxruntime"))):
        raise ConfigError("--to onnx needs onnx, onnxscript and onnxruntime: pip install 'vitdense[export]'")
    if preprocessing and (to != "onnx" or maps):
        raise ConfigError(f"--with-preprocessing: got --to {to}{' --maps' * maps}, expected --to onnx without --maps")
    int8 = precision == "int8"
    if int8 and (to != "onnx" or maps):
        raise ConfigError(f"--int8: got --to {to}{' --maps' * maps}, expected --to onnx without --maps")
    predictor = Predictor(cfg, checkpoint, score_thr=0.0)
    metadata, is_segmentor = describe(predictor, static), cfg.get("default_scope", "mmdet") == "mmseg"
    about = {key: json.loads(value) for key, value in metadata.items()}
    channels = cfg.model.backbone.get("in_channels", 3)
    dtype = torch.float16 if precision == "float16" else torch.float32
    has_queries = isinstance(predictor.model, MaskFormer)
    whole = not (is_segmentor or maps or has_queries)
    if preprocessing and "resize" not in about:
        raise ConfigError("--with-preprocessing: the test pipeline moves pixels otherwise, expected one Resize at most")
    if int8 and has_queries:
        raise ConfigError(f"--int8: got {type(predictor.model).__name__}, expected a detector or a segmentor")
    if preprocessing:
        samples = [_photo(path, about) for path in _paths(predictor.dataset, images, PHOTOS)]
    elif whole or int8:
        samples = [_image(predictor, path, static) for path in _paths(predictor.dataset, images, PHOTOS)]
    else:
        samples = [_noise((1, channels, *static) if static else (UNSEEN[0], channels, *UNSEEN[1:]))]
    task = Detector if whole else Segmentor if is_segmentor else DetectorMaps
    task = MaskTransformer if has_queries else task
    with torch.no_grad():
        found = [predict(predictor.model, sample.image, sample.size) for sample in samples] if whole else None
        model = task(predictor.model).eval()
        if whole and not (static or model.any_size):
            raise ConfigError(
                f"export: {type(predictor.model).__name__} has a program for one size only; add --static H W"
            )
        outputs = [model(sample.image) for sample in samples]
        fix(predictor.model)
    shape = (1, channels, *static) if static else (EXAMPLE[0], channels, *EXAMPLE[1:])
    program = export_program(model.to(dtype), torch.zeros(shape, dtype=dtype), not static)
    said = []
    with atomic_write(path) as scratch:
        if to == "onnx":
            for name in ("onnxscript", "onnx_ir"):  # they name constants that they do not fold
                logging.getLogger(name).setLevel(logging.ERROR)
            save_onnx(program, scratch, list(outputs[0]), metadata)
            if int8:
                from vitdense.inspect.int8 import quantise

                paths = _paths(next(leaf_datasets(cfg.train_dataloader.dataset)), calibration, CALIBRATION)
                quantise(scratch, (_image(predictor, path, static).image.numpy() for path in paths))
            if preprocessing:
                import onnx

                from vitdense.inspect.photos import of_photos

                onnx.save(of_photos(onnx.load(scratch), about), scratch)
        else:
            save_program(program, scratch, metadata)
        for name, run in _runs(scratch, to).items():
            with torch.no_grad():
                got = [run(sample.given if preprocessing else sample.given.to(dtype)) for sample in samples]
            fits, compared = _compare(got, samples, found if whole else outputs, about, BOUNDS[precision])
            said.append(f"{name}: {compared}")
            if not fits:
                hint = "" if precision == "float32" else "; export in float32"
                raise ConfigError(f"{path}: got in {name} {compared}; not written{hint}")
    sizes = " and ".join(str(list(sample.given.shape)) for sample in samples)
    listed = ", ".join(f"{name} {list(out.shape)}" for name, out in got[0].items())
    return "\n".join((f"{path} ({path.stat().st_size / 1e6:.1f} MB) at {sizes}", *said, listed))


def _compare(
    got: Sequence[Mapping], samples: Sequence[Sample], want: Sequence, about: Mapping, bounds: Bounds
) -> tuple[bool, str]:
    """Whether a program gives what the model gives, and by how much it differs.

    Args:
        got: Outputs of the program for every sample.
        samples: The images.
        want: What `predict` has for each, or the model's own outputs.
        about: See `describe`.
        bounds: Of the differences.
    """
    if "boxes" in got[0]:
        pairs = (
            (of_program(out, sample.image.shape[2:], sample.size, about), of_model(found, sample.size))
            for out, sample, found in zip(got, samples, want)
        )
        return compare_objects(pairs, bounds)
    classes = [_classes(out["logits"], sample.size, about) for out, sample in zip(want, samples) if "logits" in out]
    if "semantic" in got[0]:
        return compare_classes([out["semantic"] for out in got], classes, bounds)
    if bounds.error is None:
        found = [_classes(torch.from_numpy(out["logits"]), sample.size, about) for out, sample in zip(got, samples)]
        return compare_classes(found, classes, bounds)
    return compare_maps(got, want, bounds)


def _runs(path: Path, to: str) -> dict[str, Callable[[Tensor], Mapping]]:
    """A file in each of these runtimes that is installed: an image to the outputs by name."""
    if to == "pt2":
        return {"torch": torch.export.load(path).module()}
    engines = {name: ENGINES[name](path) for name in ENGINES if find_spec(name)}
    return {
        name: lambda image, engine=engine: dict(zip(engine.outputs, engine.run(image.numpy())))
        for name, engine in engines.items()
    }


def predict(model: nn.Module, image: Tensor, size: tuple[int, int] | None = None) -> InstanceData:
    """What a detector itself finds in an image.

    Args:
        model: The detector.
        image: Normalised, not padded, ``[1, 3, h, w]``.
        size: Of the photo of which it was made; boxes and masks are in its pixels. None: that of the image.
    """
    from mmdet.structures import DetDataSample

    (h, w), padded = image.shape[2:], pad_as(model, image)
    size = size or (h, w)
    shapes = {"img_shape": (h, w), "ori_shape": size, "batch_input_shape": tuple(padded.shape[2:])}
    sample = DetDataSample(metainfo={**shapes, "scale_factor": (w / size[1], h / size[0])})
    return model.predict(padded, [sample], rescale=True)[0].pred_instances


def of_model(found: InstanceData, size: tuple[int, int]) -> Output:
    """Detections of mmdet in an image of this size (H, W)."""
    from pycocotools import mask as rle

    masks = None
    if "masks" in found:
        masks = [rle.decode(mask) if isinstance(mask, dict) else mask.numpy() for mask in found.masks]
        masks = np.array(masks, bool).reshape(-1, *size)
    return Output(found.bboxes.numpy(), found.scores.numpy(), found.labels.numpy(), masks)


def of_program(outputs: Mapping, image: Sequence[int], size: tuple[int, int], about: Mapping) -> Output:
    """Outputs of a program.

    Args:
        outputs: Of one image.
        image: Size (h, w) of what the model sees.
        size: Size (H, W) of the photo, in whose pixels boxes are.
        about: See `describe`.
    """
    found = {name: np.asarray(value[0]) for name, value in outputs.items()}
    return objects(found, about, [seen / side for seen, side in zip(image, size)], size, 0)


def _classes(logits: Tensor, size: tuple[int, int], about: Mapping) -> np.ndarray:
    """Logits ``[1, C, h, w]`` of a segmentor as classes, ``[1, *size]``."""
    logits = F.interpolate(logits, size, mode="bilinear")
    if logits.shape[1] == 1:
        return (logits[:, 0].sigmoid() > about["threshold"]).long().numpy()
    return logits.argmax(1).numpy()
