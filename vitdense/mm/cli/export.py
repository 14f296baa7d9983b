"""Export of segmentors (mmseg) and of the maps of detectors (mmdet)."""

import json
import logging
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F
from mmdet.models.dense_heads.base_dense_head import BaseDenseHead
from mmengine.config import Config
from torch import Tensor, nn

from vitdense.files import atomic_write
from vitdense.inspect.export import export_program, largest_error, run_onnx, save_onnx, save_program
from vitdense.mm.errors import ConfigError
from vitdense.mm.predictor import load_model

FORMATS = ("pt2", "onnx")
# Relative error to the model in float32 above which nothing is written.
MAX_ERROR, MAX_ERROR_HALF = 1e-4, 1e-2
EXAMPLE, UNSEEN = (2, 160, 192), (1, 97, 131)  # batch, height, width: to export with, and to compare at


class Segmentor(nn.Module):
    """Image ``[B, 3, H, W]`` to logits ``[B, classes, H, W]``.

    Args:
        model: Encoder-decoder of mmseg. Its image is normalised, and padded as the config says.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        head = self.model.decode_head
        logits = head(self.model.extract_feat(image))  # [B, classes, h, w]
        size = (image.shape[2], image.shape[3])
        return {"logits": F.interpolate(logits, size, mode="bilinear", align_corners=head.align_corners)}


class DetectorMaps(nn.Module):
    """Image ``[B, 3, H, W]`` to the maps of the neck, and what the RPN or a dense head predicts on them.

    Boxes are not decoded: exporters and runtimes do not share operators for RoIAlign and NMS.

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


def describe_input(cfg: Config, model: nn.Module) -> dict[str, str]:
    """What the program expects of an image, and its classes, as JSON by key: `mean`, `std`, `channels`, `classes`."""
    preprocessor = cfg.model.data_preprocessor
    described = {
        "mean": preprocessor.get("mean"),
        "std": preprocessor.get("std"),
        "channels": "RGB" if preprocessor.get("bgr_to_rgb") else "BGR",  # mm reads BGR
        "classes": model.dataset_meta["classes"],
    }
    return {key: json.dumps(value) for key, value in described.items()}


def export(
    cfg: Config,
    checkpoint: str,
    path: Path,
    to: str,
    static: tuple[int, int] | None = None,
    half: bool = False,
) -> str:
    """Export a segmentor, or the maps of a detector, and compare the result with the model.

    Args:
        cfg: Its config.
        checkpoint: Its weights.
        path: File to write.
        to: One of `FORMATS`.
        static: Image (h, w) in pixels, for one image of this size; all sizes and batches when None.
        half: Weights and maps in half precision.

    Returns:
        What was written and compared.

    Raises:
        ConfigError: onnx is not installed, or the error of the result is above `MAX_ERROR` (`MAX_ERROR_HALF`); nothing
            is written. See also `load_model`.
    """
    if to == "onnx" and not all(map(find_spec, ("onnx", "onnxscript", "onnxruntime"))):
        raise ConfigError("--to onnx needs onnx, onnxscript and onnxruntime: pip install 'vitdense[export]'")
    model = load_model(cfg, checkpoint, "cpu")
    task = Segmentor if cfg.get("default_scope", "mmdet") == "mmseg" else DetectorMaps
    model, metadata = task(model).eval(), describe_input(cfg, model)
    channels, dtype = cfg.model.backbone.get("in_channels", 3), torch.float16 if half else torch.float32
    example, unseen = ((1, *static),) * 2 if static else (EXAMPLE, UNSEEN)
    image = torch.randn(unseen[0], channels, *unseen[1:], generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        want = model(image)
    program = export_program(model.to(dtype), torch.zeros(example[0], channels, *example[1:], dtype=dtype), not static)
    with atomic_write(path) as scratch:
        if to == "onnx":
            logging.getLogger("onnxscript").setLevel(logging.ERROR)  # it names the constants that it does not fold
            save_onnx(program, scratch, list(want), metadata)
            got = run_onnx(scratch, image.to(dtype))
        else:
            save_program(program, scratch, metadata)
            got = torch.export.load(scratch).module()(image.to(dtype))
        error, bound = largest_error(got, want), MAX_ERROR_HALF if half else MAX_ERROR
        if not error <= bound:  # NaN too
            raise ConfigError(
                f"{path}: got a relative error of {error:.1e} to the model, expected at most {bound:.0e}; not written"
                + ("; export without --half" if half else "")
            )
    outs = ", ".join(f"{name} {list(out.shape)}" for name, out in want.items())
    return f"{path} ({path.stat().st_size / 1e6:.1f} MB): relative error {error:.1e} at {list(image.shape)}\n{outs}"
