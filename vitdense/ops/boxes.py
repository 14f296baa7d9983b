"""Non-maximum suppression. Boxes are (x1, y1, x2, y2) in pixels."""

from collections.abc import Callable

import torch
import torchvision
from torch import Tensor

from vitdense.ops.dtypes import widen


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Indices [kept] of the boxes [N, 4] that are kept, highest score first."""
    boxes, scores = widen(boxes, scores)
    if boxes.dtype == torch.float32:
        # mmcv compares with a C float, torchvision with a double: 0.3f > 0.3 would suppress an overlap of exactly 0.3.
        iou_threshold = torch.tensor(iou_threshold, dtype=torch.float32).item()
    # torchvision has offset 0 only, hence x2 + offset.
    return torchvision.ops.nms(boxes + boxes.new_tensor([0, 0, offset, offset]), scores, iou_threshold)


SOFT_NMS_WEIGHT: dict[int, Callable[[Tensor, float, float], Tensor]] = {
    0: lambda overlap, threshold, sigma: (~(overlap >= threshold)).to(overlap),  # "naive"
    1: lambda overlap, threshold, sigma: torch.where(overlap >= threshold, 1 - overlap, 1.0),  # "linear"
    2: lambda overlap, threshold, sigma: torch.exp(-(overlap * overlap) / sigma),  # "gaussian"
}


def softnms(
    boxes: Tensor,
    scores: Tensor,
    dets: Tensor,
    iou_threshold: float,
    sigma: float,
    min_score: float,
    method: int,
    offset: int,
) -> Tensor:
    """Soft-NMS (Bodla et al. 2017): lower the scores of overlapping boxes instead of dropping the boxes.

    Fills the first rows of `dets` [N, 5] with (box, lowered score) in the order of selection and returns their indices
    [kept]. Ties are resolved as in the compiled op: it keeps the candidates in one array, swaps the best to the front
    and replaces a dropped candidate by the last. Boxes without area do not overlap (NaN scores in the compiled
    "gaussian").
    """
    rows = torch.cat(widen(boxes, scores[:, None]), 1)  # [N, 5]
    index = torch.arange(len(rows), device=rows.device)
    count, done = len(rows), 0
    while done < count:
        best = done + int(rows[done:count, 4].argmax())
        for array in (rows, index):
            array[[done, best]] = array[[best, done]]
        rest = slice(done + 1, count)
        overlap = _iou(rows[done, :4], rows[rest, :4], offset).nan_to_num(nan=0.0)
        rows[rest, 4] *= SOFT_NMS_WEIGHT[method](overlap, iou_threshold, sigma)
        alive = ~(rows[rest, 4] < min_score)  # [rest]
        left = int(alive.sum())
        order = torch.arange(left, device=rows.device)
        order[~alive[:left]] = alive[left:].nonzero()[:, 0].flip(0) + left
        for array in (rows, index):
            array[done + 1 : done + 1 + left] = array[rest][order]
        done, count = done + 1, done + 1 + left
    dets[:count] = rows[:count]
    return index[:count]


def nms_match(dets: Tensor, iou_threshold: float) -> list[list[int]]:
    """Groups of indices into dets [N, 5]: a kept box, then the boxes it suppresses (IoU >= threshold), by score."""
    (dets,) = widen(dets)
    order = dets[:, 4].argsort(descending=True, stable=True)
    groups = []
    while len(order):
        hit = _iou(dets[order[0], :4], dets[order, :4], 0) >= iou_threshold
        hit[0] = True  # also if the threshold is above 1 or the box has no area
        groups.append(order[hit].tolist())
        order = order[~hit]
    return groups


def _iou(box: Tensor, boxes: Tensor, offset: int) -> Tensor:
    """IoU [N] of a box [4] and boxes [N, 4]; widths are x2 - x1 + offset; NaN if both areas are 0."""
    low = torch.maximum(box[:2], boxes[:, :2])
    high = torch.minimum(box[2:], boxes[:, 2:])
    intersection = (high - low + offset).clamp(min=0).prod(-1)
    area, areas = ((b[..., 2:] - b[..., :2] + offset).prod(-1) for b in (box, boxes))
    return intersection / (area + areas - intersection)
