"""Comparison of an exported program with its model."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import box_iou

from vitdense.export.program import largest_error
from vitdense.runtime import Output


@dataclass(frozen=True)
class Bounds:
    """By how much a program may differ from its model in float32; otherwise nothing is written.

    Attributes:
        error: Of maps and logits, relative; None: by what the logits mean, `classes`.
        classes: Share of an image's pixels with the model's class, at least. Where two classes are a hair apart, either
            is right.
        score: Of the model's objects that count, more than this.
        objects: Share of them that must be found as follows.
        iou: Overlap of a box with the model's, at least.
        difference: Of scores.
        mask_iou: Overlap of a mask with the model's, at least.
    """

    error: float | None
    classes: float
    score: float
    objects: float
    iou: float
    difference: float
    mask_iou: float


# Half precision and int8 change scores, and thereby what suppression keeps.
BOUNDS = {
    "float32": Bounds(error=1e-4, classes=0.999, score=0.05, objects=1, iou=0.999, difference=1e-3, mask_iou=0.99),
    "float16": Bounds(error=1e-2, classes=0.99, score=0.05, objects=1, iou=0.98, difference=2e-2, mask_iou=0.95),
    "int8": Bounds(error=None, classes=0.9, score=0.3, objects=0.9, iou=0.5, difference=0.2, mask_iou=0.5),
}


def compare_maps(got: Mapping, want: Mapping[str, Tensor], bounds: Bounds) -> tuple[bool, str]:
    """Whether a program gives what the model gives, and the error."""
    error = largest_error(got, want)
    fits = error <= bounds.error  # NaN is not
    return fits, f"relative error {error:.1e}" + ("" if fits else f" to the model, expected at most {bounds.error:.0e}")


def can_compare(wanted: Sequence[Output], bounds: Bounds) -> bool:
    """Whether a model finds something in some image, on which a program can be compared with it."""
    return any(want.semantic is not None or _counts(want, bounds).any() for want in wanted)


def _counts(want: Output, bounds: Bounds) -> np.ndarray:
    """Which objects of a model count, [N] bool; of those without an area there is no overlap."""
    return (want.scores > bounds.score) & (want.boxes[:, 2:] > want.boxes[:, :2]).all(1)


def compare_results(pairs: Iterable[tuple[Output, Output]], bounds: Bounds) -> tuple[bool, str]:
    """Whether a program finds in images what the model finds: the classes of their pixels, or their objects.

    Args:
        pairs: Of the program and of the model, for every image.
        bounds: Of the differences.

    Returns:
        Whether they fit, and the largest differences.
    """
    pairs = list(pairs)
    if pairs[0][1].semantic is None:
        return _compare_objects(pairs, bounds)
    equal = min((got.semantic == want.semantic).mean() for got, want in pairs)
    fits = bool(equal >= bounds.classes)
    said = f"{equal:.2%} of the pixels with the model's class"
    return fits, said if fits else f"{said}, expected at least {bounds.classes:.1%}"


def _compare_objects(pairs: Sequence[tuple[Output, Output]], bounds: Bounds) -> tuple[bool, str]:
    rows, has_masks = [], False  # of each object of the model: IoU of boxes, difference of scores, IoU of masks
    for got, want in pairs:
        has_masks = want.masks is not None
        overlaps = box_iou(*(torch.from_numpy(one.boxes) for one in (want, got))).numpy()
        overlaps *= want.labels[:, None] == got.labels  # [wanted, found]
        differences = np.abs(want.scores[:, None] - got.scores)
        for i in np.flatnonzero(_counts(want, bounds)):
            if not len(got.boxes):
                rows.append((0.0, 1.0, 0.0))
                continue
            k, of_masks = (overlaps[i] - differences[i]).argmax(), 1.0
            if has_masks:
                union = (got.masks[k] | want.masks[i]).sum()
                of_masks = (got.masks[k] & want.masks[i]).sum() / union if union else 1.0
            rows.append((overlaps[i, k], differences[i, k], of_masks))
    if not rows:
        return False, f"nothing to compare: no object of the model has a score above {bounds.score}"
    of_boxes, of_scores, of_masks = np.array(rows).T  # a NaN stays one in their least and largest, and fits nothing
    same = (of_boxes >= bounds.iou) & (of_scores <= bounds.difference) & (of_masks >= bounds.mask_iou)
    found = (
        f"{same.sum()} of {len(rows)} objects: boxes with IoU {of_boxes.min():.4f}, scores within "
        f"{of_scores.max():.1e}" + f", masks with IoU {of_masks.min():.4f}" * has_masks
    )
    fits = bool(same.mean() >= bounds.objects)
    expected = f"{bounds.objects:.0%} with {bounds.iou}, {bounds.difference} and {bounds.mask_iou}"
    return fits, found if fits else f"{found} of the model's, expected {expected}"
