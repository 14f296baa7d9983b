"""Models as programs: a class for each kind, with its outputs and how they are compared."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from mmdet.models.dense_heads import Mask2FormerHead
from mmdet.models.dense_heads.base_dense_head import BaseDenseHead
from mmdet.models.detectors import MaskFormer, SparseRCNN
from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData
from torch import Tensor, nn

from vitdense.export.compare import Bounds, compare_classes, compare_maps, compare_objects
from vitdense.mm.errors import ConfigError
from vitdense.mm.export.detectors import finder, pad, pad_as
from vitdense.mm.export.samples import Sample
from vitdense.runtime import Output, objects


class Task(nn.Module):
    """A model as a module from images ``[B, C, H, W]``, normalised, to outputs by name.

    What is wanted of it comes first; then `detectors.fix` replaces modules of the model, and the task is exported.

    Args:
        model: The model, in eval mode.

    Attributes:
        any_size: Whether torch exports it for all sizes and batches.
        needs_photos: Whether it is compared on photos; otherwise on noise.
        has_int8: Whether its programs in int8 can be compared.
    """

    any_size = True
    needs_photos = False
    has_int8 = False

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def wanted(self, sample: Sample) -> Any:
        """What the model itself makes of an image."""
        return self(sample.image)

    def compare(
        self, got: Sequence[Mapping], samples: Sequence[Sample], wanted: Sequence, about: Mapping, bounds: Bounds
    ) -> tuple[bool, str]:
        """Whether a program gives what the model gives, and by how much it differs.

        Args:
            got: Outputs of the program for every sample.
            samples: The images.
            wanted: What `wanted` gives for each.
            about: The description of the program.
            bounds: Of the differences.
        """
        return compare_maps(got, wanted, bounds)


class DetectorMaps(Task):
    """The maps of the neck, and what the RPN or a dense head predicts on them; boxes are not decoded.

    Args:
        model: Detector of mmdet. Its image is padded as the config says.
    """

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
    box, of RF-DETR ``[B, N, h, w]``, logits of the whole image.

    N is `max_per_img` of the config. Places without an object have score 0 and label -1. Boxes are float32.

    Args:
        model: A detector of mmdet with a dense head, a RoI head, or the head of Sparse R-CNN, DINO or RF-DETR. DINO has
            a forward pass only after `detectors.fix`.

    Raises:
        ConfigError: It has a head whose prediction this does not know.
    """

    needs_photos = True
    has_int8 = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.find = finder(model)
        self.any_size = not isinstance(model, SparseRCNN)  # whose layers of its own torch exports for one batch

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        maps = self.model.extract_feat(pad_as(self.model, image))
        found, masks = self.find(self.model, maps, tuple(image.shape[2:]))
        outs = found._asdict()
        return outs if masks is None else {**outs, "masks": masks}

    def wanted(self, sample: Sample) -> Output:
        return of_model(predict(self.model, sample.image, sample.size), sample.size)

    def compare(
        self, got: Sequence[Mapping], samples: Sequence[Sample], wanted: Sequence, about: Mapping, bounds: Bounds
    ) -> tuple[bool, str]:
        found = (
            of_program(out, sample.image.shape[2:], sample.size, about, sample.given.dtype == torch.uint8)
            for out, sample in zip(got, samples)
        )
        return compare_objects(zip(found, wanted), bounds)


def predict(model: nn.Module, image: Tensor, size: tuple[int, int] | None = None) -> InstanceData:
    """What a detector itself finds in an image, as guarded by `guard_model`.

    Args:
        model: The detector.
        image: Normalised, not padded, ``[1, 3, h, w]``.
        size: Of the photo of which it was made; boxes and masks are in its pixels. None: that of the image.
    """
    (h, w), padded = image.shape[2:], pad_as(model, image)
    size = size or (h, w)
    shapes = {"img_shape": (h, w), "ori_shape": size, "batch_input_shape": tuple(padded.shape[2:])}
    sample = DetDataSample(metainfo={**shapes, "scale_factor": (w / size[1], h / size[0])})
    return model(padded, [sample], mode="predict")[0].pred_instances


def of_model(found: InstanceData, size: tuple[int, int]) -> Output:
    """Detections of mmdet in an image of this size (H, W)."""
    from pycocotools import mask as rle

    masks = None
    if "masks" in found:
        masks = [rle.decode(mask) if isinstance(mask, dict) else mask.numpy() for mask in found.masks]
        masks = np.array(masks, bool).reshape(-1, *size)
    return Output(found.bboxes.numpy(), found.scores.numpy(), found.labels.numpy(), masks)


def of_program(
    outputs: Mapping, image: Sequence[int], size: tuple[int, int], about: Mapping, of_photo: bool = False
) -> Output:
    """Outputs of a program for an image, as `vitdense.runtime.Program` reads them.

    Args:
        outputs: By name.
        image: Size (h, w) of what the model sees.
        size: Size (H, W) of the photo.
        about: The description of the program.
        of_photo: The program takes photos.
    """
    found = {name: np.asarray(value[0]) for name, value in outputs.items()}
    scale = [seen / side for seen, side in zip(image, size)]
    if not of_photo:
        found["boxes"] = found["boxes"] / np.float32([*scale[::-1]] * 2)
    return objects(found, about, scale, size, 0)


class Segmentor(Task):
    """``logits`` ``[B, classes, H, W]``; of queries (EoMT, PMT, Mask2Former) the sums of their masks, weighted by their
    classes.

    Args:
        model: Encoder-decoder of mmseg.

    Raises:
        ConfigError: Images to test are padded to one size.
    """

    has_int8 = True

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

    def compare(
        self, got: Sequence[Mapping], samples: Sequence[Sample], wanted: Sequence, about: Mapping, bounds: Bounds
    ) -> tuple[bool, str]:
        of_photos = "semantic" in got[0]
        if not of_photos and bounds.error is not None:
            return compare_maps(got, wanted, bounds)

        def classes(out: Mapping, sample: Sample) -> np.ndarray:
            return _classes(torch.as_tensor(out["logits"]), sample.size, about["threshold"])

        found = [out["semantic"] if of_photos else classes(out, sample) for out, sample in zip(got, samples)]
        return compare_classes(found, [*map(classes, wanted, samples)], bounds)


def _classes(logits: Tensor, size: tuple[int, int], threshold: float) -> np.ndarray:
    """Logits ``[1, C, h, w]`` of a segmentor as classes, ``[1, *size]``."""
    logits = F.interpolate(logits, size, mode="bilinear")
    if logits.shape[1] == 1:
        return (logits[:, 0].sigmoid() > threshold).long().numpy()
    return logits.argmax(1).numpy()


class MaskTransformer(Task):
    """What a Mask2Former, an EoMT or a PMT predicts: logits of classes ``[B, Q, classes + 1]`` and of masks
    ``[B, Q, h, w]``, which cover the image, padded to the config's `pad_size_divisor`. `vitdense.runtime.Program` goes
    on.

    Args:
        model: Of mmdet.
    """

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        classes, masks = self.model.panoptic_head(self.model.extract_feat(pad_as(self.model, image)), None)
        return {"classes": classes[-1], "masks": masks[-1]}


def task_of(model: nn.Module, maps: bool = False) -> Task:
    """The task of a model of mmdet or mmseg.

    Args:
        model: The model, in eval mode.
        maps: Of a detector of boxes, its maps instead of its objects.

    Raises:
        ConfigError: Maps of another model. See also the tasks.
    """
    kind = Segmentor if hasattr(model, "decode_head") else MaskTransformer if isinstance(model, MaskFormer) else None
    if maps and kind:
        raise ConfigError(f"--maps: got {type(model).__name__}, expected a detector of boxes; leave --maps out")
    return (kind or (DetectorMaps if maps else Detector))(model)
