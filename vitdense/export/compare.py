"""Comparison of an exported program with its model; for results see also `vitdense.runtime.compare_results`."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from torch import Tensor

from vitdense.export.program import largest_error
from vitdense.runtime import Bounds, Output, box_iou, classes_of, counting, least

SAME = 0.5  # least IoU of boxes, and of masks, of the same object


def compare_maps(got: Mapping, want: Mapping[str, Tensor], bounds: Bounds) -> tuple[bool, str]:
    """Whether the outputs of a program equal the model's within `bounds`, and the error as text."""
    error = largest_error(got, want)
    fits = error <= bounds.error  # NaN is not
    return fits, f"relative error {error:.1e}" + ("" if fits else f" to the model, expected at most {bounds.error:.0e}")


def can_compare(wanted: Sequence[Output], bounds: Bounds) -> bool:
    """Whether a model finds an object, or any pixel class, to compare a program with."""
    return any(want.semantic is not None or counting(want, bounds).any() for want in wanted)


def compare_counts(pairs: Iterable[tuple[Output, Output]], bound: float) -> tuple[bool, str]:
    """Whether a program finds the model's objects in photos, and no others; or the model's pixel classes.

    Args:
        pairs: Outputs of the program and of the model for every photo, after `above`.
        bound: Most lost and new objects, as a share of the model's; or most pixels with another class, as a share.

    Returns:
        Whether the bound holds, and the counts as text.
    """
    rows, has_boxes = [], False
    for got, want in pairs:
        has_boxes = want.boxes is not None
        if has_boxes:
            same = matched(got, want)
            rows.append((len(want.boxes) - same, len(got.boxes) - same, len(want.boxes)))
        else:
            rows.append((classes_of(got) != classes_of(want)).mean())
    if has_boxes:
        lost, new, number = np.mean(rows, 0)
        share = (lost + new) / number
        said = f"{lost:.2f} lost and {new:.2f} new of {number:.2f} objects per image in {len(rows)}, {share:.1%}"
    else:
        share = np.mean(rows)
        said = f"{share:.2%} of the pixels in {len(rows)} images with another class"
    fits = bool(share <= bound)
    return fits, said if fits else f"{said}, expected at most {bound:.1%} (--int8-bound)"


def above(found: Output, score_thr: float | Sequence[float]) -> Output:
    """What was found, without objects below the minimum score, one for all classes or one for each."""
    if found.boxes is None:
        return found
    kept = found.scores >= least(score_thr, found.labels)
    masks, points = (None if part is None else part[kept] for part in (found.masks, found.keypoints))
    return Output(found.boxes[kept], found.scores[kept], found.labels[kept], masks, keypoints=points)


def matched(got: Output, want: Output) -> int:
    """How many objects of a program match the model's, greedily: the best first, each with the nearest that is left."""
    overlaps = box_iou(want.boxes, got.boxes) * (want.labels[:, None] == got.labels)  # [wanted, found]
    if want.masks is not None and overlaps.size:
        ours, theirs = (one.masks.reshape(len(one.masks), -1).astype(np.float32) for one in (want, got))
        both = ours @ theirs.T
        union = ours.sum(1)[:, None] + theirs.sum(1) - both
        overlaps *= both >= SAME * union
    if want.keypoints is not None and overlaps.size:  # mean distance relative to the side of the box
        sides = np.sqrt((want.boxes[:, 2:] - want.boxes[:, :2]).prod(1))[:, None]  # [wanted, 1]
        apart = np.abs(want.keypoints[:, None, :, :2] - got.keypoints[..., :2]).mean((2, 3))  # [wanted, found]
        overlaps *= apart <= (1 - SAME) * sides
    overlaps, number = overlaps[np.argsort(-want.scores)], 0
    for row in overlaps if overlaps.size else ():
        if row.max() >= SAME:
            overlaps[:, row.argmax()] = 0
            number += 1
    return number
