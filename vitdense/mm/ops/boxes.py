"""Non-maximum suppression. Boxes are (x1, y1, x2, y2) in pixels."""

from collections.abc import Callable

import numpy as np
import torch
import torchvision
from torch import Tensor

from vitdense.mm.ops.dtypes import widen


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Indices [kept] of the boxes [N, 4] that are kept, highest score first."""
    boxes, scores = widen(boxes, scores)
    if boxes.dtype == torch.float32:
        # mmcv compares with a C float, torchvision with a double: 0.3f > 0.3 would suppress an overlap of exactly 0.3.
        iou_threshold = torch.tensor(iou_threshold, dtype=torch.float32).item()
    # torchvision has offset 0 only, hence x2 + offset.
    return torchvision.ops.nms(boxes + boxes.new_tensor([0, 0, offset, offset]), scores, iou_threshold)


SOFT_NMS_WEIGHT: dict[int, Callable[[np.ndarray, float, float], np.ndarray]] = {
    0: lambda overlap, threshold, sigma: ~(overlap >= threshold),  # "naive"
    1: lambda overlap, threshold, sigma: np.where(overlap >= threshold, 1 - overlap, np.float32(1)),  # "linear"
    2: lambda overlap, threshold, sigma: torch.from_numpy(-(overlap * overlap) / sigma).exp().numpy(),  # "gaussian"
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
    "gaussian"). All tensors are on the CPU, as for the compiled op. Each selection depends on the ones before it: the
    loop is in numpy, whose calls cost a fraction of torch's.
    """
    boxes, scores = widen(boxes, scores)
    areas = (boxes[:, 2] - boxes[:, 0] + offset) * (boxes[:, 3] - boxes[:, 1] + offset)  # [N]
    rows = torch.cat([boxes.T, scores[None], areas[None]]).numpy()  # [6, N]
    index = np.arange(rows.shape[1])
    threshold, lowest = rows.dtype.type(iou_threshold), rows.dtype.type(min_score)
    count, done = len(index), 0
    with np.errstate(divide="ignore", invalid="ignore"):  # boxes without area
        while done < count:
            best = done + rows[4, done:count].argmax()
            for array in (rows, index):
                array[..., [done, best]] = array[..., [best, done]]
            x1, y1, x2, y2, _, area = rows[:, done]
            rest = rows[:, done + 1 : count]  # [6, rest]
            width = np.minimum(x2, rest[2]) - np.maximum(x1, rest[0]) + offset
            height = np.minimum(y2, rest[3]) - np.maximum(y1, rest[1]) + offset
            shared = np.maximum(width, 0) * np.maximum(height, 0)  # [rest]
            overlap = shared / (area + rest[5] - shared)
            overlap[overlap != overlap] = 0
            rest[4] *= SOFT_NMS_WEIGHT[method](overlap, threshold, sigma)
            done += 1
            dropped = rest[4] < lowest  # [rest]
            if dropped.any():
                left = len(dropped) - np.count_nonzero(dropped)
                order = np.arange(left)
                order[dropped[:left]] = left + np.flatnonzero(~dropped[left:])[::-1]
                count = done + left
                for array in (rows, index):
                    array[..., done:count] = array[..., done + order]
    dets[:count] = torch.from_numpy(rows[:5, :count].T)
    return torch.from_numpy(index[:count])


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
