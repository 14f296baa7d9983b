"""Training targets of RepPoints V2 for one image: on its device, without loops over points or boxes.

There are N points in all levels and G ground-truth boxes (x1, y1, x2, y2) in pixels. `points` [N, 4] are
(x, y, stride, stride) in pixels, level after level; `counts` are the points per level. `inside` [N] marks points within
the padded image; other points get no target. An assignment [N] is 1 + the index of a ground-truth box, or 0 for
background.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
import torch.nn.functional as F
from mmdet.structures.bbox import bbox_overlaps
from torch import Tensor

INFINITY = float("inf")
POINT_SCALE = 4  # size of a box in strides: sqrt(w * h) is 32 to 64 pixels for stride 8
MIN_MARGIN = 0.01  # pixels from a positive's centre to the nearest side of its ground-truth box


def assign_init(points: Tensor, inside: Tensor, boxes: Tensor) -> Tensor:
    """Assignment [N] of the first boxes (RepPoints): the point nearest to a box's centre, on the level of its size.

    Distances are relative to width and height of the box. A point goes to the nearest box.
    """
    centers, sizes = (boxes[:, :2] + boxes[:, 2:]) / 2, (boxes[:, 2:] - boxes[:, :2]).clamp(min=1e-6)
    levels = points[:, 2].log2().round()
    wanted = (sizes / POINT_SCALE).log2().mean(1).floor().clamp(levels[0], levels[-1])  # [G]
    distances = ((points[:, None, :2] - centers) / sizes).norm(dim=-1)  # [N, G]
    distances = distances.masked_fill(~inside[:, None] | (levels[:, None] != wanted), INFINITY)
    nearest, index = distances.min(0, keepdim=True)  # [1, G]
    return _claim(index, nearest, len(points))


def assign_atss(predicted: Tensor, counts: Sequence[int], inside: Tensor, boxes: Tensor, topk: int) -> Tensor:
    """Assignment [N] by adaptive training sample selection (ATSS) on predicted boxes [N, 4].

    Candidates of a ground-truth box are the `topk` predicted boxes of each level with the nearest centres. Candidates
    are positive if their IoU is at least mean + standard deviation of all, and their centre is inside the box.
    """
    centers = (predicted[:, :2] + predicted[:, 2:]) / 2  # [N, 2]
    distances = (centers[:, None] - (boxes[:, :2] + boxes[:, 2:]) / 2).norm(dim=-1)  # [N, G]
    distances = distances.masked_fill(~inside[:, None], INFINITY)
    index = _nearest(distances, counts, topk)  # [K, G]
    exists = distances.gather(0, index).isfinite()  # [K, G]: a level may have fewer points inside
    overlaps = bbox_overlaps(predicted, boxes).gather(0, index)  # [K, G]
    number = exists.sum(0)  # [G]
    mean = (overlaps * exists).sum(0) / number
    deviation = ((overlaps - mean).square() * exists).sum(0).div(number - 1).sqrt()  # [G]
    margins = torch.cat([centers[index] - boxes[:, :2], boxes[:, 2:] - centers[index]], -1).amin(-1)  # [K, G]
    positive = exists & (overlaps >= mean + deviation) & (margins > MIN_MARGIN)
    return _claim(index, (-overlaps).masked_fill(~positive, INFINITY), len(predicted))


def gaussian_radius(sizes: Tensor, iou: float) -> Tensor:
    """How far in pixels, [G], both corners of boxes (height, width) [G, 2] may move while the IoU is at least `iou`.

    CornerNet takes the least of three cases: both corners move into the box, one in and one out, both out. The least is
    always the first, where (h - 2 r) (w - 2 r) = iou h w.
    """
    # With m = iou, A = h w, s = h + w: 2 r s = A (1 - m) + 4 r^2, and r is largest for a square, so that
    # r^2 <= A (1 - sqrt(m))^2 / 4. By the same r
    # one in, one out: (h - r) (w - r) = A (1 + m) / 2 - r^2 >= 2 m A / (1 + m), that is an IoU of m at least, for
    #     A (1 + m) / 2 - 2 m A / (1 + m) = A (1 - m)^2 / (2 (1 + m)) >= A (1 - sqrt(m))^2 / 4;
    # both out: (h + 2 r) (w + 2 r) = A (2 - m) + 8 r^2 <= A / m, likewise, for
    #     A / m - A (2 - m) = A (1 - m)^2 / m >= 2 A (1 - sqrt(m))^2.
    total, area = sizes.sum(1), sizes.prod(1)
    return (total - (total**2 - 4 * area * (1 - iou)).sqrt()) / 4


def corner_targets(
    points: Tensor, counts: Sequence[int], inside: Tensor, corners: Tensor, radii: Tensor
) -> tuple[Tensor, Tensor]:
    """Targets of one corner of every box, on all levels.

    Args:
        corners: (x, y) [G, 2].
        radii: Radii of the Gaussians, in pixels on every level [G].

    Returns:
        Heatmap [N]: the largest Gaussian, and 1 at the point of each level that is nearest to a corner. Offsets [N, 2]:
        where the heatmap is 1, (x, y) from the point to the corner in strides; the last box's if boxes share a point.
    """
    distances = (corners - points[:, None, :2]).norm(dim=-1).masked_fill(~inside[:, None], INFINITY)  # [N, G]
    sigmas = (2 * radii + 1) / 6
    heatmaps = (-(distances / sigmas).square() / 2).exp() * (distances < radii)
    index = _nearest(distances, counts, 1)  # [levels, G]
    heatmap = F.pad(heatmaps.scatter(0, index, 1.0), (1, 0)).amax(1)  # [N], 0 without boxes
    last = -torch.arange(len(corners), device=corners.device, dtype=corners.dtype).expand(index.shape)
    assigned = _claim(index, last, len(points))
    offset = (F.pad(corners, (0, 0, 1, 0))[assigned] - points[:, :2]) / points[:, 2:]  # [N, 2]
    return heatmap, offset * (assigned > 0)[:, None]


def semantic_weights(points: Tensor, inside: Tensor, boxes: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Weights [n, num_classes] of the n points of the finest level: 1 / area in pixels of the smallest box of a class
    that overlaps the cell, or 0 without one."""
    cell = (points[:, :2] / points[:, 2:])[:, None]  # [n, 1, 2]
    first, last = ((corner / points[0, 2]).floor() for corner in (boxes[:, :2], boxes[:, 2:]))
    covered = ((cell >= first) & (cell <= last)).all(-1) & inside[:, None]  # [n, G]
    areas = (boxes[:, 2:] - boxes[:, :2]).clamp(min=1e-6).prod(1)
    weights = boxes.new_zeros(len(points), num_classes)
    return weights.scatter_reduce(1, labels.expand(covered.shape), covered / areas, "amax")


def _nearest(distances: Tensor, counts: Sequence[int], k: int) -> Tensor:
    """Indices of the k nearest points of every level for each column of distances [N, G]: [levels * k, G].

    A level with fewer than k points gives all of them.
    """
    parts = zip(distances.split(list(counts)), accumulate(counts, initial=0))
    return torch.cat([part.topk(min(k, len(part)), 0, largest=False).indices + start for part, start in parts])


def _claim(index: Tensor, costs: Tensor, num_points: int) -> Tensor:
    """Assignment [num_points] of points that several boxes may claim: the lowest cost wins, then the first box.

    A column of `index` [K, G] has the points that a box claims; `costs` [K, G] are infinite for no claim.
    """
    table = costs.new_full((num_points, 1 + costs.shape[1]), INFINITY)
    table[:, 1:].scatter_(0, index, costs)
    return table.argmin(1)  # 0, the first, where all are infinite
