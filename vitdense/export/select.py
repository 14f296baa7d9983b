"""Selection of boxes with fixed shapes: only values depend on the content of an image.

B images, N boxes (x1, y1, x2, y2) in pixels. An empty place has score 0 and label -1.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor


class Found(NamedTuple):
    """Objects of a batch."""

    boxes: Tensor  # [B, N, 4] float32
    scores: Tensor  # [B, N] float32
    labels: Tensor  # [B, N] int64


def take(x: Tensor, index: Tensor) -> Tensor:
    """Rows of ``[B, N, ...]`` at an index ``[B, K]``: ``[B, K, ...]``."""
    index = index.reshape(*index.shape, *(1,) * (x.ndim - 2))  # [B, K, 1...]
    return x.gather(1, index.expand(-1, -1, *x.shape[2:]))


def highest(scores: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """The highest of scores ``[B, N]`` and their index, ``[B, number]`` each; equal scores in order, as in mmdet.

    The top-k of torch and OpenVINO does not define the order of equal scores, which are common where all activations
    are 0. The numbers sorted here are all different.
    """
    count = scores.shape[1]
    last = scores.topk(number).values[:, -1:]  # [B, 1]
    from_end = torch.arange(count, device=scores.device).neg() + count  # [N]
    rank = torch.where(scores > last, from_end + count, torch.where(scores == last, from_end, 0))  # [B, N]
    index = rank.topk(number).indices  # [B, number], the last score's at the end
    scores, order = scores.gather(1, index).topk(number)  # [B, number]
    step = F.pad((scores[:, 1:] < scores[:, :-1]).long(), (1, 0)).cumsum(1)  # [B, number]
    right = (step * number + order).topk(number, largest=False).indices  # [B, number]
    return scores, index.gather(1, order.gather(1, right))


def best(scores: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """As `highest`, for scores of at least 0; if N is less than `number`, the rest has score -1 and index 0."""
    scores, index = highest(F.pad(scores, (0, number), value=-1.0), number)
    return scores, index.masked_fill(scores < 0, 0)


def corners(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Boxes (cx, cy, width, height) in 0..1, ``[..., 4]``, to (x1, y1, x2, y2) in pixels of an image (h, w)."""
    centre, side = boxes.float().split(2, -1)
    return torch.cat([centre - side / 2, centre + side / 2], -1) * sides(size, boxes)


def clip(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Clip boxes to an image (h, w)."""
    return torch.minimum(boxes.clamp(min=0), sides(size, boxes))


def sides(size: tuple[int, int], like: Tensor) -> Tensor:
    """``[4]``: width, height, width, height."""
    return torch.cat([torch.full((1,), side, dtype=torch.float32, device=like.device) for side in size[::-1]] * 2)


def suppress(found: Found, groups: int, iou_threshold: float, number: int) -> Found:
    """Non-maximum suppression within each of `groups` labels; returns the best `number` boxes of every image.

    A box with a score below 0 is empty. A box is dropped if its IoU with a better one exceeds `iou_threshold`.
    """
    boxes, scores, labels = found
    batch, count = scores.shape
    # One call for all images and labels, each moved to its own cell of a grid. A row, as in mmcv, loses float32 digits.
    columns = math.ceil(math.sqrt(groups))
    image = torch.arange(batch, device=labels.device)[:, None] * math.ceil(groups / columns)  # [B, 1]
    cell = torch.stack([labels % columns, labels // columns + image], -1)  # [B, N, 2]
    least = boxes.min().clamp(max=0)
    moved = boxes + cell.repeat(1, 1, 2) * (boxes.max().clamp(min=0) - least + 1)
    # Two extra boxes away from all others: torch's programs assert that at least two are kept.
    more = least - torch.tensor([[2.0, 2, 1, 1], [4, 4, 3, 3]], device=boxes.device)
    moved = torch.cat([moved.flatten(0, 1), more])  # [B * N + 2, 4]
    kept = torchvision.ops.nms(moved, F.pad(scores.flatten(), (0, 2), value=-2.0), iou_threshold)
    left = torch.zeros_like(moved[:, 0]).index_fill(0, kept, 1)[:-2].reshape(batch, count)  # [B, N]
    scores, index = best(torch.where(left > 0, scores, -1.0), number)  # [B, number]
    return pack(take(boxes, index), scores, take(labels, index))


def pack(boxes: Tensor, scores: Tensor, labels: Tensor) -> Found:
    """Mark boxes with a score of 0 or less as empty places."""
    empty = scores <= 0
    return Found(boxes.masked_fill(empty[..., None], 0.0), scores.clamp(min=0), labels.masked_fill(empty, -1))
