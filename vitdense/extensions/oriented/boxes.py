"""The convention of oriented boxes, and the ways from and to corners, radians and straight boxes.

A box is (cx, cy, w, h, angle): the centre, w >= h >= 0 in pixels, and the rotation of the side w in degrees, clockwise
in the image (y points down), in [-90, 90). A square has four such sides: its angle is in [-45, 45).
"""

import torch
from torch import Tensor

DEGREE = torch.pi / 180  # in radians


def regular(boxes: Tensor) -> Tensor:
    """The same boxes [..., 5] in the convention; any sides w, h >= 0 and any angle in degrees are accepted.

    Boxes that keep to the convention are unchanged, to the bit.
    """
    x, y, w, h, angle = boxes.unbind(-1)
    angle = torch.where(w < h, angle + 90, angle)
    period = torch.where(w == h, 90.0, 180.0).to(angle)
    angle = angle - period * torch.floor(angle / period + 0.5)
    angle = torch.where(angle < -period / 2, angle + period, angle)  # the quotient was rounded up to the next turn
    return torch.stack([x, y, torch.maximum(w, h), torch.minimum(w, h), angle], -1)


def corners(boxes: Tensor) -> Tensor:
    """Corners [..., 4, 2] of boxes [..., 5]: top left, top right, bottom right, bottom left at angle 0.

    The first side is w, from the first corner to the second. The order is clockwise in the image.
    """
    centre, w, h, angle = boxes[..., None, :2], boxes[..., 2:3], boxes[..., 3:4], boxes[..., 4:] * DEGREE
    side = torch.cat([angle.cos(), angle.sin()], -1)[..., None, :]  # [..., 1, 2], along w
    normal = torch.cat([-angle.sin(), angle.cos()], -1)[..., None, :]  # [..., 1, 2], along h
    right = torch.cat([-w, w, w, -w], -1)[..., None] / 2  # [..., 4, 1]
    down = torch.cat([-h, -h, h, h], -1)[..., None] / 2  # [..., 4, 1]
    return centre + right * side + down * normal  # [..., 4, 2]


def from_corners(points: Tensor) -> Tensor:
    """The rectangle of the smallest area around points [..., P, 2], P >= 2, in any order, as a box [..., 5].

    One of its sides goes through two of the points: all pairs are tried. A rectangle's corners give the rectangle.
    """
    middle = points.mean(-2, keepdim=True)
    points = points - middle
    first, second = torch.triu_indices(points.shape[-2], points.shape[-2], 1, device=points.device)
    x, y = (points[..., second, :] - points[..., first, :]).unbind(-1)  # [..., pairs]
    angle = torch.atan2(y, x)
    cos, sin = angle.cos()[..., None], angle.sin()[..., None]
    x, y = (part[..., None, :] for part in points.unbind(-1))  # [..., 1, P]
    along, across = cos * x + sin * y, cos * y - sin * x  # [..., pairs, P]
    left, right, top, bottom = along.amin(-1), along.amax(-1), across.amin(-1), across.amax(-1)
    best = ((right - left) * (bottom - top)).argmin(-1, keepdim=True)  # [..., 1]
    cos, sin = cos[..., 0], sin[..., 0]
    u, v = (left + right) / 2, (top + bottom) / 2
    rows = torch.stack([cos * u - sin * v, sin * u + cos * v, right - left, bottom - top, angle / DEGREE], -1)
    box = rows.gather(-2, best[..., None].expand(*best.shape, 5))[..., 0, :]  # [..., 5]
    return regular(torch.cat([box[..., :2] + middle[..., 0, :], box[..., 2:]], -1))


def from_le90(boxes: Tensor) -> Tensor:
    """Boxes [..., 5] from mmrotate's "le90" or any other (cx, cy, w, h, clockwise angle in radians)."""
    return regular(torch.cat([boxes[..., :4], boxes[..., 4:] / DEGREE], -1))


def to_le90(boxes: Tensor) -> Tensor:
    """Boxes [..., 5] in mmrotate's "le90": the same, with the angle in radians."""
    return torch.cat([boxes[..., :4], boxes[..., 4:] * DEGREE], -1)


def enclosing(boxes: Tensor) -> Tensor:
    """Straight boxes (x1, y1, x2, y2) [..., 4] around boxes [..., 5]."""
    return bounds(corners(boxes))


def bounds(points: Tensor) -> Tensor:
    """Straight boxes (x1, y1, x2, y2) [..., 4] around points [..., P, 2]."""
    return torch.cat([points.amin(-2), points.amax(-2)], -1)
