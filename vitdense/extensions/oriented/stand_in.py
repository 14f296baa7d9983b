"""The ops of mmcv's compiled extension for oriented boxes, by its names, arguments and in-place results.

Boxes are (cx, cy, w, h, angle in radians); mmcv turns counterclockwise angles before it calls an op. Polygons are
(x1, y1, x2, y2, ...) in one row. As mmcv's own, `nms_rotated` and `nms_quadri` do not look at the labels. They drop a
box whose IoU is above the threshold, as on CUDA; mmcv's ops for the CPU drop one at the threshold too.
"""

import torch
from torch import Tensor

from vitdense.extensions.oriented import ops
from vitdense.extensions.oriented.boxes import DEGREE, corners, from_corners
from vitdense.ops.deformable import widen

MODES = ("iou", "iof")
ROI_OPTIONS = ("pooled_height", "pooled_width", "spatial_scale", "sampling_ratio", "aligned", "clockwise")


def _shapes(rows: Tensor) -> Tensor:
    """Boxes [N, 5], or RoIs [K, 6] with the index of the image, in degrees; polygons [N, 2 * P] as [N, P, 2]."""
    (rows,) = widen(rows)
    if rows.shape[1] > 6:
        return rows.unflatten(1, (-1, 2))  # [N, P, 2]
    return torch.cat([rows[:, :-1], rows[:, -1:] / DEGREE], 1)


def box_iou_rotated(boxes1: Tensor, boxes2: Tensor, ious: Tensor, mode_flag: int, aligned: bool) -> None:
    """Fill ious [N] or [N * M] for boxes [N, 5] and [M, 5], or quadrangles [N, 8] and [M, 8].

    Mode 0 is IoU, 1 intersection over the first area.
    """
    ious.copy_(ops.box_iou_rotated(_shapes(boxes1), _shapes(boxes2), aligned, MODES[mode_flag]).flatten())


def nms_rotated(dets: Tensor, scores: Tensor, *others: Tensor | float) -> Tensor:
    """Indices [kept] of boxes [N, 5] or quadrangles [N, 8], by descending score; a further column has labels.

    The last of the others are the threshold, and whether there are labels.
    """
    return ops.nms_rotated(_shapes(dets[:, : 5 if dets.shape[1] < 8 else 8]), scores, others[-2])


box_iou_quadri, nms_quadri = box_iou_rotated, nms_rotated


def roi_align_rotated_forward(input: Tensor, rois: Tensor, output: Tensor, **options: float) -> None:
    """RoIAlign of rois [K, 6] on input [B, C, H, W] -> output [K, C, p, q]."""
    output.copy_(_align(*widen(input), rois, **options))


def roi_align_rotated_backward(grad_output: Tensor, rois: Tensor, grad_input: Tensor, **options: float) -> None:
    """Add the gradient of `roi_align_rotated_forward`, grad_output [K, C, p, q], to grad_input [B, C, H, W]."""
    (grad,) = widen(grad_output)
    with torch.enable_grad():
        features = torch.zeros_like(grad_input, dtype=grad.dtype, requires_grad=True)
        grad_input.add_(*torch.autograd.grad(_align(features, rois, **options), features, grad))


def _align(features: Tensor, rois: Tensor, **options: float) -> Tensor:
    height, width, *others = (options[name] for name in ROI_OPTIONS)
    return ops.roi_align_rotated(features, _shapes(rois), (height, width), *others)


def min_area_polygons(pointsets: Tensor, polygons: Tensor) -> None:
    """Fill polygons [N, 8] with the smallest rectangles around nine points [N, 18]: top right corner, then left."""
    boxes = from_corners(_shapes(pointsets))
    quarter = torch.cat([boxes[:, :2], boxes[:, [3, 2]], boxes[:, 4:] + 90], 1)
    points = corners(torch.where(boxes[:, 4:] < 0, quarter, boxes))
    polygons.copy_(points[:, [1, 0, 3, 2]].flatten(1))


def points_in_polygons_forward(points: Tensor, polygons: Tensor, output: Tensor) -> None:
    """Fill output [N, M] with 1 where a point [N, 2] is inside a quadrangle [M, 8], else 0."""
    x, y = points[:, :, None, None].unbind(1)  # [N, 1, 1]
    x0, y0, x1, y1 = ops.sides(_shapes(polygons))  # [M, 4]
    crosses = (y0 < y) != (y1 < y)  # [N, M, 4]
    right = x < x0 + (y - y0) * (x1 - x0) / torch.where(crosses, y1 - y0, 1)
    output.copy_((crosses & right).sum(2) % 2)


def diff_iou_rotated_sort_vertices_forward(vertices: Tensor, mask: Tensor, num_valid: Tensor) -> Tensor:
    """Indices [B, N, 9] of the valid vertices [B, N, 24, 2] around the origin; then the first again, then invalid ones.

    Vertices are eight corners and sixteen intersections of sides, of which a polygon has eight at most. More are valid
    where some coincide: the eight with the longest steps to them stay.
    """
    x, y = vertices.unbind(-1)  # [B, N, 24]
    order = torch.atan2(y, x).masked_fill(~mask, torch.inf).argsort(-1)
    count = num_valid[..., None].long()
    before = order.gather(-1, (torch.arange(24, device=x.device) - 1) % count.clamp(min=1))
    steps = sum((one.gather(-1, order) - one.gather(-1, before)).abs() for one in (x, y))
    chosen = steps.masked_fill(~mask.gather(-1, order), -1).topk(8).indices.sort(-1).values  # [B, N, 8]
    padding = 8 + mask[..., 8:].int().argmin(-1, keepdim=True)
    ring = torch.cat([order.gather(-1, chosen), padding], -1)  # [B, N, 9]
    place = torch.arange(9, device=x.device)
    ring = torch.where(place == count.clamp(max=8), ring[..., :1], torch.where(place < count, ring, padding))
    return torch.where(count < 3, padding, ring).int()
