"""What a file says of its program: what it expects of an image, and how its outputs are read."""

import json

from mmdet.models.detectors import MaskFormer
from torch import nn

from vitdense.mm.heads.rfdetr.head import RFDETRHead
from vitdense.mm.heads.rfdetr.masks import MASK_STRIDE
from vitdense.mm.predictor import Predictor

MOVES = ("Resize", "Crop", "Pad", "Flip", "Rotate")  # in names of steps of a pipeline that move pixels


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
