"""Models as programs: a class for each kind, with its outputs, and what is wanted of them."""

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

from vitdense.export.compare import above, can_compare, compare_counts, compare_maps
from vitdense.mm.errors import ConfigError
from vitdense.mm.export.detectors import finder, pad, pad_as
from vitdense.mm.export.samples import Sample, describe
from vitdense.mm.heads.rle_masks import fields_of
from vitdense.mm.predictor import Predictor
from vitdense.results.result import Result
from vitdense.runtime import BOUNDS, SCORE, Output, compare_results, read


class Task(nn.Module):
    """A model, in eval mode, as a module from images ``[B, C, H, W]``, normalised, to outputs by name.

    What is wanted of it comes first; then `detectors.fix` replaces modules of the model, and the task is exported.
    """

    any_size = True  # torch exports it for all sizes and batches
    finds = False  # its outputs are objects, or classes of pixels, by which it is compared on photos
    needs_photos = False  # it is compared on photos; otherwise on noise

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def wanted(self, sample: Sample) -> Mapping[str, Tensor] | Output:
        """What the model itself makes of an image."""
        return self(sample.image)


class DetectorMaps(Task):
    """The maps of a detector's neck, and what the RPN or a dense head predicts on them; boxes are not decoded."""

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
    """``boxes`` ``[B, N, 4]`` (x1, y1, x2, y2) in pixels of the input, ``scores`` ``[B, N]``, best first, and
    ``labels`` ``[B, N]``; of a detector with masks also ``masks`` ``[B, N, 28, 28]``, the probabilities inside of each
    box, of RF-DETR ``[B, N, h, w]``, logits of the whole image; with keypoints ``keypoints`` ``[B, N, K, 3]``, x and y
    in pixels of the input, and a score.

    N is `max_per_img` of the config. Places without an object have score 0 and label -1. Boxes are float32. DINO has a
    forward pass only after `detectors.fix`; a detector without a `detectors.finder` is a ConfigError.
    """

    finds = True
    needs_photos = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.find = finder(model)
        self.any_size = not isinstance(model, SparseRCNN)  # whose layers of its own torch exports for one batch

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        maps = self.model.extract_feat(pad_as(self.model, image))
        found, masks = self.find(self.model, maps, tuple(image.shape[2:]))
        outs = found._asdict()
        return outs if masks is None else {**outs, "masks": masks}

    def wanted(self, sample: Sample) -> Result:
        return Result(**fields_of(predict(self.model, sample.image, sample.size)))


def predict(model: nn.Module, image: Tensor, size: tuple[int, int] | None = None) -> InstanceData:
    """What a detector itself finds in an image, normalised, not padded, ``[1, 3, h, w]``, in the pixels of a photo of
    this size, by default the image's."""
    (h, w), padded = image.shape[2:], pad_as(model, image)
    size = size or (h, w)
    shapes = {"img_shape": (h, w), "ori_shape": size, "batch_input_shape": tuple(padded.shape[2:])}
    sample = DetDataSample(metainfo={**shapes, "scale_factor": (w / size[1], h / size[0])})
    return model(padded, [sample], mode="predict")[0].pred_instances


class Segmentor(Task):
    """``logits`` ``[B, classes, H, W]`` of an encoder-decoder of mmseg; of queries (EoMT, PMT, Mask2Former) the sums of
    their masks, weighted by their classes."""

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
    """What a Mask2Former, an EoMT or a PMT predicts: logits of classes ``[B, Q, classes + 1]`` and of masks
    ``[B, Q, h, w]``, which cover the image, padded to the config's `pad_size_divisor`. `vitdense.runtime.Program` goes
    on."""

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        classes, masks = self.model.panoptic_head(self.model.extract_feat(pad_as(self.model, image)), None)
        return {"classes": classes[-1], "masks": masks[-1]}


def task_of(model: nn.Module, maps: bool = False) -> Task:
    """The task of a model of mmdet or mmseg in eval mode; of a detector of boxes its `maps`, if they are asked for."""
    kind = Segmentor if hasattr(model, "decode_head") else MaskTransformer if isinstance(model, MaskFormer) else None
    if maps and kind:
        raise ConfigError(f"--maps: got {type(model).__name__}, expected a detector of boxes; leave --maps out")
    return (kind or (DetectorMaps if maps else Detector))(model)


class Part:
    """One of the models of a program, as its `task`; `about` and `metadata` are what the file says of it.

    Args:
        name: Before the names of its outputs, with a slash; empty where it is alone.
        predictor: The model.
        maps: See `task_of`.
        scope: Of its modules in the program of all; empty where it is alone.
        precision: Of the program, see `BOUNDS`. Objects of int8 are compared from the operating point on, or `SCORE`.
    """

    def __init__(self, name: str, predictor: Predictor, maps: bool, scope: str, precision: str) -> None:
        self.name, self.predictor, self.scope = name, predictor, scope
        self.start = f"{name}/" if name else ""
        self.task = task_of(predictor.model, maps).eval()
        described = describe(predictor)
        self.metadata = {self.start + key: value for key, value in described.items()}
        self.about = {key: json.loads(value) for key, value in described.items()}
        self.kind, self.bounds, self.score_thr = type(predictor.model).__name__, BOUNDS[precision], 0.0
        self.int8, point = precision == "int8", predictor.operating_point
        if self.int8:
            self.score_thr = point.thresholds if point else SCORE
            self.bounds = replace(self.bounds, score=np.min(self.score_thr))

    def want(self, samples: Sequence[Sample], by_results: bool) -> None:
        """Ask the model what it makes of images; `by_results`: objects or classes, where it finds such, not outputs."""
        self.by_results = by_results and self.task.finds
        wanted = [self.task.wanted(sample) for sample in samples]
        if self.by_results:
            wanted = [
                out if isinstance(out, Output) else self.read(out, sample) for out, sample in zip(wanted, samples)
            ]
            wanted = [above(out, self.score_thr) for out in wanted] if self.int8 else wanted
        # Whether it found something to compare at.
        self.wanted, self.compares = wanted, not self.by_results or can_compare(wanted, self.bounds)

    def own(self, outputs: Mapping) -> dict:
        """The outputs of a program that are this model's, by their own names."""
        return {key.removeprefix(self.start): out for key, out in outputs.items() if key.startswith(self.start)}

    def found(self, outputs: Mapping, sample: Sample) -> Output:
        return self.read(self.own(outputs), sample, self.score_thr)

    def read(self, outputs: Mapping, sample: Sample, score_thr: float | Sequence[float] = 0.0) -> Output:
        """Outputs of the model for an image, as what was found in it; `found` takes outputs of the program."""
        arrays = {name: np.asarray(out[0]) for name, out in outputs.items()}
        of_photo = sample.given.dtype == torch.uint8
        return read(arrays, self.about, sample.image.shape[2:], sample.size, score_thr, of_photo)

    def compare(self, got: Sequence[Mapping], samples: Sequence[Sample], int8_bound: float) -> tuple[bool, str]:
        """Whether outputs of the program are those that are wanted, and how far they are from them; `int8_bound`: see
        `vitdense.mm.cli.export.Wish`."""
        said = f"{self.name}, " if self.name else ""
        if not self.compares:
            return True, f"{said}runs; not compared, for the model finds nothing"
        if self.int8:
            fits, compared = compare_counts(zip(map(self.found, got, samples), self.wanted), int8_bound)
        elif self.by_results:
            fits, compared = compare_results(zip(map(self.found, got, samples), self.wanted), self.bounds)
        else:
            fits, compared = compare_maps([*map(self.own, got)], self.wanted, self.bounds)
        return fits, said + compared
