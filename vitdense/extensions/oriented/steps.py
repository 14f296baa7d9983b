"""Oriented boxes in mmdet's pipelines, as four corners, which each step moves with the image."""

from collections.abc import Sequence
from typing import Any, NoReturn

import cv2
import numpy as np
import torch
from mmdet.structures.bbox import BaseBoxes, register_box, register_box_converter
from torch import Tensor

from vitdense.extensions.oriented.boxes import bounds
from vitdense.extensions.oriented.ops import area, box_iou_rotated
from vitdense.mm.errors import ConfigError


@register_box("corners")
class Corners(BaseBoxes):
    """Corners of oriented boxes, ``[N, 8]``: x and y of each in pixels, along the outline.

    ``LoadAnnotations(box_type="corners")`` makes them of an `OrientedDataset`. A crop keeps objects whole whose centre
    is inside of it.
    """

    box_dim = 8

    @property
    def points(self) -> Tensor:
        """``[..., 4, 2]``."""
        return self.tensor.unflatten(-1, (4, 2))

    @points.setter
    def points(self, points: Tensor) -> None:
        self.tensor = points.flatten(-2)  # [..., 8]

    @property
    def centers(self) -> Tensor:
        return self.points.mean(-2)  # [..., 2]

    @property
    def widths(self) -> Tensor:
        return (self.points[..., 1, :] - self.points[..., 0, :]).norm(dim=-1)  # [...]

    @property
    def heights(self) -> Tensor:
        return (self.points[..., 2, :] - self.points[..., 1, :]).norm(dim=-1)  # [...]

    @property
    def areas(self) -> Tensor:
        return area(self.points)  # [...]

    def flip_(self, img_shape: tuple[int, int], direction: str = "horizontal") -> None:
        height, width = img_shape
        signs = {"horizontal": (-1, 1), "vertical": (1, -1), "diagonal": (-1, -1)}[direction]
        away = [size if sign < 0 else 0 for size, sign in zip((width, height), signs)]
        self.points = self.points * self.tensor.new_tensor(signs) + self.tensor.new_tensor(away)

    def translate_(self, distances: Sequence[float]) -> None:
        self.points = self.points + self.tensor.new_tensor(distances)

    def clip_(self, img_shape: tuple[int, int]) -> None:
        """Leaves corners outside of the image: what is cut would have another direction."""

    def rotate_(self, center: Sequence[float], angle: float) -> None:
        """Turn clockwise by degrees."""
        self.project_(np.vstack([cv2.getRotationMatrix2D(tuple(center), -angle, 1), [0, 0, 1]]))

    def project_(self, homography_matrix: Tensor | np.ndarray) -> None:
        matrix = self.tensor.new_tensor(np.asarray(homography_matrix))  # [3, 3]
        whole = torch.cat([self.points, torch.ones_like(self.points[..., :1])], -1) @ matrix.T  # [..., 4, 3]
        self.points = whole[..., :2] / whole[..., 2:]

    def rescale_(self, scale_factor: Sequence[float]) -> None:
        self.points = self.points * self.tensor.new_tensor(scale_factor)

    def resize_(self, scale_factor: Sequence[float]) -> None:
        middle = self.centers[..., None, :]
        self.points = (self.points - middle) * self.tensor.new_tensor(scale_factor) + middle

    def is_inside(self, img_shape: tuple[int, int], all_inside: bool = False, allowed_border: int = 0) -> Tensor:
        """Whether the centre, or with `all_inside` every corner, is in the image; bool ``[N]``."""
        height, width = img_shape
        points = self.points if all_inside else self.centers[..., None, :]  # [N, 4 or 1, 2]
        most = self.tensor.new_tensor([width + allowed_border, height + allowed_border])
        return ((points >= -allowed_border) & (points < most)).all(-1).all(-1)  # [N]

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ConfigError("oriented boxes: got a step that needs points in boxes, or boxes of masks; leave it out")

    find_inside_points = from_instance_masks = _refuse

    @staticmethod
    def overlaps(boxes1: "Corners", boxes2: "Corners", mode: str = "iou", is_aligned: bool = False, **_: Any) -> Tensor:
        return box_iou_rotated(boxes1.points, boxes2.points, is_aligned, mode)


@register_box_converter(Corners, "hbox")
def straight(corners: Tensor) -> Tensor:
    """Corners ``[..., 8]`` to the straight boxes around them ``[..., 4]``."""
    return bounds(corners.unflatten(-1, (4, 2)))
