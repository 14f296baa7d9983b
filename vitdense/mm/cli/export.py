"""Export of detectors (mmdet), or their maps, and of segmentors (mmseg)."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F
from mmdet.models.dense_heads import Mask2FormerHead
from mmdet.models.dense_heads.base_dense_head import BaseDenseHead
from mmdet.models.detectors import MaskFormer
from mmengine.config import Config
from mmengine.structures import InstanceData
from torch import Tensor, nn
from torchvision.ops import box_iou

from vitdense.files import atomic_write
from vitdense.inspect.export import export_program, largest_error, save_onnx, save_program
from vitdense.mm.errors import ConfigError
from vitdense.mm.export.detectors import Detector, fix, pad, pad_as
from vitdense.mm.heads.rfdetr.head import RFDETRHead
from vitdense.mm.heads.rfdetr.masks import MASK_STRIDE
from vitdense.mm.predictor import Predictor
from vitdense.runtime import ENGINES, cover, paste

FORMATS = ("pt2", "onnx")
# Relative error to the model in float32 above which nothing is written.
MAX_ERROR, MAX_ERROR_HALF = 1e-4, 1e-2
EXAMPLE, UNSEEN = (2, 320, 384), (1, 97, 131)  # batch, height, width: to export with, and to compare at
# Whole detectors: of each object of a higher score, the overlap of its box and of its mask with the model's, and the
# difference of scores; wider in half precision, which changes scores and thereby what suppression keeps.
SCORE, MIN_IOU, MAX_DIFFERENCE, MIN_MASK_IOU = 0.05, 0.999, 1e-3, 0.99
MIN_IOU_HALF, MAX_DIFFERENCE_HALF, MIN_MASK_IOU_HALF = 0.98, 2e-2, 0.95
PHOTOS = 3
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


def export(
    cfg: Config,
    checkpoint: str,
    path: Path,
    to: str,
    static: tuple[int, int] | None = None,
    half: bool = False,
    maps: bool = False,
    photos: Sequence[str] = (),
) -> str:
    """Export a detector or a segmentor, and compare the result with the model.

    Args:
        cfg: Its config.
        checkpoint: Its weights.
        path: File to write.
        to: One of `FORMATS`.
        static: Image (h, w) in pixels, for one image of this size; all sizes and batches when None.
        half: Weights and maps in half precision.
        maps: Of a detector, its maps instead of its objects.
        photos: Images to compare a detector's objects on; the first of the config's test data set when empty.

    Returns:
        What was written and compared.

    Raises:
        ConfigError: onnx is not installed; the detector is none that can be exported whole; there are no photos; or the
            result differs from the model by more than the bounds above: nothing is written. See also `load_model`.
    """
    if to == "onnx" and not all(map(find_spec, ("onnx", "onnxscript", "onnxruntime"))):
        raise ConfigError("--to onnx needs onnx, onnxscript and onnxruntime: pip install 'vitdense[export]'")
    predictor = Predictor(cfg, checkpoint, score_thr=0.0)
    metadata, is_segmentor = describe(predictor, static), cfg.get("default_scope", "mmdet") == "mmseg"
    channels, dtype = cfg.model.backbone.get("in_channels", 3), torch.float16 if half else torch.float32
    example, unseen = ((1, *static),) * 2 if static else (EXAMPLE, UNSEEN)
    has_queries = isinstance(predictor.model, MaskFormer)
    whole = not (is_segmentor or maps or has_queries)
    with torch.no_grad():
        if whole:
            images = _photos(predictor, photos, static)
            wanted = [_predict(predictor.model, image) for image in images]
        else:
            images = [torch.randn(unseen[0], channels, *unseen[1:], generator=torch.Generator().manual_seed(0))]
        task = Detector if whole else Segmentor if is_segmentor else DetectorMaps
        task = MaskTransformer if has_queries else task
        model = task(predictor.model).eval()
        if whole and not (static or model.any_size):
            raise ConfigError(
                f"export: {type(predictor.model).__name__} has a program for one size only; add --static H W"
            )
        want = model(images[0])
        fix(predictor.model)
    program = export_program(model.to(dtype), torch.zeros(example[0], channels, *example[1:], dtype=dtype), not static)
    with atomic_write(path) as scratch:
        if to == "onnx":
            for name in ("onnxscript", "onnx_ir"):  # they name constants that they do not fold
                logging.getLogger(name).setLevel(logging.ERROR)
            save_onnx(program, scratch, list(want), metadata)
        else:
            save_program(program, scratch, metadata)
        said = []
        for name, run in _runs(scratch, to, list(want)).items():
            outs = [run(image.to(dtype)) for image in images]
            if whole:
                of_masks = (json.loads(metadata[key]) for key in ("mask_thr", "mask_stride"))
                fits, compared = _compare_objects(outs, wanted, *of_masks, half)
            else:
                fits, compared = _compare_maps(outs[0], want, half)
            said.append(f"{name}: {compared}")
            if not fits:
                hint = "; export without --half" if half else ""
                raise ConfigError(f"{path}: got in {name} {compared}; not written{hint}")
    sizes = " and ".join(str(list(image.shape)) for image in images)
    lines = "\n".join(said)
    listed = ", ".join(f"{name} {list(out.shape)}" for name, out in want.items())
    return f"{path} ({path.stat().st_size / 1e6:.1f} MB) at {sizes}\n{lines}\n{listed}"


def _runs(path: Path, to: str, names: Sequence[str]) -> dict[str, Callable[[Tensor], Mapping]]:
    """A file in each of these runtimes that is installed: an image to the outputs by name."""
    if to == "pt2":
        return {"torch": torch.export.load(path).module()}
    engines = {name: ENGINES[name](path).run for name in ENGINES if find_spec(name)}
    return {name: lambda image, run=run: dict(zip(names, run(image.numpy()))) for name, run in engines.items()}


def _compare_maps(got: Mapping, want: Mapping[str, Tensor], half: bool) -> tuple[bool, str]:
    """Whether a program gives what the model gives, and the error."""
    error, bound = largest_error(got, want), MAX_ERROR_HALF if half else MAX_ERROR
    fits = error <= bound  # NaN is not
    return fits, f"relative error {error:.1e}" + ("" if fits else f" to the model, expected at most {bound:.0e}")


def _photos(predictor: Predictor, paths: Sequence[str], static: tuple[int, int] | None) -> list[Tensor]:
    """Images ``[1, 3, h, w]`` as a program takes them: resized and normalised, not padded."""
    if not paths:
        from vitdense.mm.registry import DATASETS

        try:
            dataset = DATASETS.build({**predictor.dataset, "pipeline": []})
        except OSError as error:
            raise ConfigError(
                f"--images: the test data set of the config cannot be read ({error}); name photos"
            ) from error
        paths = [dataset.get_data_info(i)["img_path"] for i in range(min(PHOTOS, len(dataset)))]
    images = []
    for path in paths:
        data = predictor.read(path)
        padded = predictor.model.data_preprocessor({key: [value] for key, value in data.items()}, False)["inputs"]
        h, w = data["inputs"].shape[1:]
        image = padded[..., :h, :w]  # [1, 3, h, w]
        images.append(F.interpolate(image, static, mode="bilinear") if static else image)
    return images


def _predict(model: nn.Module, image: Tensor) -> InstanceData:
    """What the detector itself finds in an image ``[1, 3, h, w]``, in its pixels."""
    from mmdet.structures import DetDataSample

    size, padded = tuple(image.shape[2:]), pad_as(model, image)
    shapes = {"img_shape": size, "ori_shape": size, "batch_input_shape": tuple(padded.shape[2:])}
    sample = DetDataSample(metainfo={**shapes, "scale_factor": (1.0, 1.0)})
    return model.predict(padded, [sample], rescale=False)[0].pred_instances


def _compare_objects(
    outs: Sequence[Mapping], wanted: Sequence[InstanceData], mask_thr: float, mask_stride: int | None, half: bool
) -> tuple[bool, str]:
    """Whether a program finds what the model finds, and the largest differences."""
    from pycocotools import mask as rle

    rows = []  # of each object of the model: IoU of boxes, difference of scores, IoU of masks
    for out, want in zip(outs, wanted):
        boxes, scores, labels = (torch.as_tensor(out[name])[0] for name in ("boxes", "scores", "labels"))
        want = want[want.scores > SCORE]
        overlaps = box_iou(want.bboxes, boxes) * (want.labels[:, None] == labels)  # [wanted, N]
        differences = (want.scores[:, None] - scores).abs()
        for i, overlap in enumerate(overlaps):
            k, of_masks = int((overlap - differences[i]).argmax()), 1.0
            if "masks" in out:
                mask, of_model = torch.as_tensor(out["masks"])[0, k].numpy(), want.masks[i]
                of_model = rle.decode(of_model).astype(bool) if mask_stride is None else of_model.numpy()
                if mask_stride is None:
                    whole = paste(mask, boxes[k].numpy(), of_model.shape)
                else:
                    whole = cover(mask, mask_stride, (1, 1), of_model.shape)
                union = ((whole >= mask_thr) | of_model).sum()
                of_masks = float(((whole >= mask_thr) & of_model).sum() / union) if union else 1.0
            rows.append((overlap[k].item(), differences[i, k].item(), of_masks))
    if not rows:
        return (
            False,
            f"nothing to compare, for the model finds no object with a score above {SCORE}; give other --images",
        )
    of_boxes, of_scores, of_masks = torch.tensor(rows).T  # a NaN stays one in their least and largest
    least, most, least_mask = of_boxes.min().item(), of_scores.max().item(), of_masks.min().item()
    bounds = (MIN_IOU_HALF, MAX_DIFFERENCE_HALF, MIN_MASK_IOU_HALF) if half else (MIN_IOU, MAX_DIFFERENCE, MIN_MASK_IOU)
    found = (
        f"{len(rows)} objects: boxes with IoU {least:.4f}, scores within {most:.1e}, masks with IoU {least_mask:.4f}"
    )
    fits = least >= bounds[0] and most <= bounds[1] and least_mask >= bounds[2]  # no NaN does
    return fits, found if fits else f"{found} of the model's, expected {bounds[0]}, {bounds[1]} and {bounds[2]}"
