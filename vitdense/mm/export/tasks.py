"""Models as programs: a class for each kind, with its outputs and the results to compare with."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from mmdet.models.dense_heads import Mask2FormerHead
from mmdet.models.dense_heads.base_dense_head import BaseDenseHead
from mmdet.models.detectors import MaskFormer, SparseRCNN
from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData
from torch import Tensor, nn

from vitdense.export.program import can_compare, compare_maps
from vitdense.mm.errors import ConfigError
from vitdense.mm.export.detectors import finder, pad, pad_as
from vitdense.mm.export.samples import Sample, describe
from vitdense.mm.heads.rle_masks import fields_of
from vitdense.mm.predictor import Predictor
from vitdense.results.result import Result
from vitdense.runtime import BOUNDS, SCORE, Output, above, changes, compare_results, read


class Task(nn.Module):
    """A model, in eval mode, as a module from normalised images ``[B, C, H, W]`` to outputs by name.

    First `wanted` runs the original model; then `detectors.fix` replaces modules of it, and the task is exported.
    """

    any_size = True  # torch can export it for all sizes and batches
    finds = False  # outputs are objects or pixel classes, which are compared on photos
    needs_photos = False  # must be compared on photos, not on noise

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def wanted(self, sample: Sample) -> Mapping[str, Tensor] | Output:
        """The original model's outputs or results for an image."""
        return self(sample.image)


class DetectorMaps(Task):
    """The maps of a detector's neck, and raw outputs of the RPN or a dense head; boxes are not decoded."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        head = getattr(model, "rpn_head", getattr(model, "bbox_head", None))
        self.head = head if isinstance(head, BaseDenseHead) else None

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        maps = self.model.extract_feat(image)
        outs = {f"map{i}": x for i, x in enumerate(maps)}
        if self.head is not None:
            for name, levels in zip(("scores", "boxes", "centers"), self.head(maps)):
                outs.update({f"{name}{i}": x for i, x in enumerate(levels)})
        return outs


class Detector(Task):
    """The objects of a detector, best first.

    Outputs are ``boxes`` ``[B, N, 4]`` (x1, y1, x2, y2) in pixels of the input, ``scores`` and ``labels`` ``[B, N]``.
    ``masks`` are ``[B, N, 28, 28]``, probabilities within each box; for RF-DETR ``[B, N, h, w]``, logits of the image.
    ``keypoints`` are ``[B, N, K, 3]``, x and y in pixels of the input, and a score.

    N is `max_per_img` of the config. Empty places have score 0 and label -1. Boxes are float32. DINO runs only after
    `detectors.fix`; a detector without a `detectors.finder` is a ConfigError.
    """

    finds = True
    needs_photos = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.find = finder(model)
        self.any_size = not isinstance(model, SparseRCNN)  # torch exports its layers for one batch size only

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        maps = self.model.extract_feat(pad_as(self.model, image))
        found, more = self.find(self.model, maps, tuple(image.shape[2:]))
        return {**found._asdict(), **more}

    def wanted(self, sample: Sample) -> Result:
        return Result(**fields_of(predict(self.model, sample.image, sample.size)))


def predict(model: nn.Module, image: Tensor, size: tuple[int, int] | None = None) -> InstanceData:
    """The objects that the original detector finds in a normalised, unpadded image ``[1, 3, h, w]``.

    Boxes are in pixels of a photo of this size, by default the image's.
    """
    (h, w), padded = image.shape[2:], pad_as(model, image)
    size = size or (h, w)
    shapes = {"img_shape": (h, w), "ori_shape": size, "batch_input_shape": tuple(padded.shape[2:])}
    sample = DetDataSample(metainfo={**shapes, "scale_factor": (w / size[1], h / size[0])})
    return model(padded, [sample], mode="predict")[0].pred_instances


class Segmentor(Task):
    """``logits`` ``[B, classes, H, W]`` of mmseg's encoder-decoder; with queries (EoMT, PMT, Mask2Former) the sums of
    masks weighted by classes."""

    finds = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
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


class MaskTransformer(Task):
    """Logits of classes ``[B, Q, classes + 1]`` and masks ``[B, Q, h, w]`` of a Mask2Former, EoMT or PMT.

    Masks cover the image padded to the config's `pad_size_divisor`. `vitdense.runtime.Program` computes the results.
    """

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        classes, masks = self.model.panoptic_head(self.model.extract_feat(pad_as(self.model, image)), None)
        return {"classes": classes[-1], "masks": masks[-1]}


def task_of(model: nn.Module, maps: bool = False) -> Task:
    """The task of a model of mmdet or mmseg in eval mode; with `maps` a detector's maps."""
    kind = Segmentor if hasattr(model, "decode_head") else MaskTransformer if isinstance(model, MaskFormer) else None
    if maps and kind:
        raise ConfigError(f"--maps: got {type(model).__name__}, expected a detector of boxes; leave --maps out")
    return (kind or (DetectorMaps if maps else Detector))(model)


class Part:
    """One model of a program, with its `task`, and its metadata in the file, `about` and `metadata`.

    Args:
        name: Prefix of its outputs, before a slash; empty for a single model.
        predictor: The model.
        maps: See `task_of`.
        scope: Prefix of its modules in the program; empty for a single model.
        precision: Precision of the program, see `BOUNDS`. int8 is compared on objects with the scores of the operating
            point, or `SCORE`.
    """

    def __init__(self, name: str, predictor: Predictor, maps: bool, scope: str, precision: str) -> None:
        self.name, self.predictor, self.scope = name, predictor, scope
        self.start = f"{name}/" if name else ""
        self.task = task_of(predictor.model, maps).eval()
        described = describe(predictor)
        self.metadata = {self.start + key: value for key, value in described.items()}
        self.about = {key: json.loads(value) for key, value in described.items()}
        self.of_photos = False  # whether the program takes photos, by an extension
        self.kind, self.bounds, self.score_thr = type(predictor.model).__name__, BOUNDS[precision], 0.0
        self.int8, point = precision == "int8", predictor.operating_point
        if self.int8:
            self.score_thr = point.thresholds if point else SCORE
            self.bounds = replace(self.bounds, score=np.min(self.score_thr))

    def want(self, samples: Sequence[Sample], by_results: bool) -> None:
        """Run the model on images; `by_results`: keep objects or classes, if it finds such, instead of outputs."""
        self.by_results = by_results and self.task.finds
        wanted = [self.task.wanted(sample) for sample in samples]
        if self.by_results:
            wanted = [
                out if isinstance(out, Output) else self.read(out, sample) for out, sample in zip(wanted, samples)
            ]
            wanted = [above(out, self.score_thr) for out in wanted] if self.int8 else wanted
        # Whether it found something to compare on.
        self.wanted, self.compares = wanted, not self.by_results or can_compare(wanted, self.bounds)

    def own(self, outputs: Mapping) -> dict:
        """This model's outputs of a program, by name without the prefix."""
        return {key.removeprefix(self.start): out for key, out in outputs.items() if key.startswith(self.start)}

    def found(self, outputs: Mapping, sample: Sample) -> Output:
        return self.read(self.own(outputs), sample, self.score_thr)

    def read(self, outputs: Mapping, sample: Sample, score_thr: float | Sequence[float] = 0.0) -> Output:
        """The result for an image, from outputs of the model; `found` takes outputs of the program."""
        arrays = {name: np.asarray(out[0]) for name, out in outputs.items()}
        return read(arrays, self.about, sample.image.shape[2:], sample.size, score_thr, sample.is_photo)

    def compare(self, got: Sequence[Mapping], samples: Sequence[Sample], int8_bound: float) -> tuple[bool, str]:
        """Whether outputs of the program equal the wanted ones within the bounds, and the differences as text."""
        said = f"{self.name}, " if self.name else ""
        if not self.compares:
            return True, f"{said}runs; not compared, for the model finds nothing"
        if self.int8:
            share, compared = changes(zip(map(self.found, got, samples), self.wanted))
            fits = share <= int8_bound  # NaN is not
            compared += "" if fits else f", expected at most {int8_bound:.1%} (--int8-bound)"
        elif self.by_results:
            fits, compared = compare_results(zip(map(self.found, got, samples), self.wanted), self.bounds)
        else:
            fits, compared = compare_maps([*map(self.own, got)], self.wanted, self.bounds)
        return fits, said + compared
