"""Keypoints in mmdet's pipelines, in place of masks: every step transforms masks with the image."""

from collections.abc import Sequence
from typing import Any, NoReturn

import cv2
import mmcv
import numpy as np
import torch
from mmdet.datasets.transforms import LoadAnnotations
from mmdet.structures.mask.structures import BaseInstanceMasks
from torch import Tensor

from vitdense.mm.errors import ConfigError
from vitdense.mm.registry import TRANSFORMS

RADIUS = 2  # pixels of a point in `Keypoints.to_ndarray`


class Keypoints(BaseInstanceMasks):
    """K keypoints of every object of an image, in float32, with the interface of masks.

    Args:
        points: ``[N, K, 3]``: x, y in pixels, and 0 not labelled, 1 hidden, 2 visible.
        height, width: Of the image.
        mirrored: See `Kinds`.
    """

    def __init__(self, points: np.ndarray, height: int, width: int, mirrored: Sequence[int]) -> None:
        self.points, self.height, self.width, self.mirrored = points, height, width, mirrored

    def __getitem__(self, index: Any) -> "Keypoints":
        return self._with(self.points[np.atleast_1d(np.arange(len(self))[index])])

    def __len__(self) -> int:
        return len(self.points)

    def _with(self, points: np.ndarray, size: Sequence[int] | None = None) -> "Keypoints":
        height, width = size or (self.height, self.width)
        return Keypoints(points.astype(np.float32), int(height), int(width), self.mirrored)

    def resize(self, out_shape: Sequence[int], interpolation: str = "") -> "Keypoints":
        """Scale to an image of this height and width."""
        return self._with(self.points * (out_shape[1] / self.width, out_shape[0] / self.height, 1), out_shape)

    def rescale(self, scale: float | Sequence[int], interpolation: str = "") -> "Keypoints":
        """Scale as mmcv rescales the image."""
        return self.resize(mmcv.rescale_size((self.width, self.height), scale)[::-1])

    def flip(self, flip_direction: str = "horizontal") -> "Keypoints":
        """Flip. Left and right keypoints are swapped, except by a diagonal flip, which is a rotation."""
        points = self.points if flip_direction == "diagonal" else self.points[:, self.mirrored]  # [N, K, 3]
        points = points.copy()
        if flip_direction != "vertical":
            points[..., 0] = self.width - points[..., 0]
        if flip_direction != "horizontal":
            points[..., 1] = self.height - points[..., 1]
        return self._with(points)

    def pad(self, out_shape: Sequence[int], pad_val: int = 0) -> "Keypoints":
        """Pad right and bottom."""
        return self._with(self.points, out_shape)

    def crop(self, bbox: np.ndarray) -> "Keypoints":
        """Crop to a box (left, upper, right, lower); points outside become "not labelled"."""
        left, upper, right, lower = np.minimum(np.asarray(bbox), [self.width, self.height] * 2).clip(0)
        points = self.points - np.float32([left, upper, 0])
        x, y = points[..., 0], points[..., 1]
        points[..., 2] *= (x >= 0) & (y >= 0) & (x <= right - left) & (y <= lower - upper)
        return self._with(points, (max(lower - upper, 1), max(right - left, 1)))

    def expand(self, expanded_h: int, expanded_w: int, top: int, left: int) -> "Keypoints":
        """Move to a place in a larger image."""
        return self._with(self.points + np.float32([left, top, 0]), (expanded_h, expanded_w))

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ConfigError(
            "train_pipeline: got a step that turns, shears or shifts objects, mixes images, or makes boxes of masks; "
            "keypoints follow steps that resize, flip, crop, pad or expand: leave it out"
        )

    crop_and_resize = translate = shear = rotate = get_bboxes = cat = _refuse
    masks = property(_refuse)

    @property
    def areas(self) -> np.ndarray:
        """Number of labelled points of every object, ``[N]``."""
        return (self.points[..., 2] > 0).sum(-1)

    def astype(self, kind: type) -> np.ndarray:
        return self.to_ndarray().astype(kind)  # for mm's pictures

    def to_ndarray(self) -> np.ndarray:
        """Masks of the pixels around labelled points, ``[N, H, W]`` uint8."""
        masks = np.zeros((len(self), self.height, self.width), np.uint8)
        for mask, points in zip(masks, self.points):
            for x, y in points[points[:, 2] > 0, :2].astype(int).tolist():
                cv2.circle(mask, (x, y), RADIUS, 1, cv2.FILLED)
        return masks

    def to_tensor(self, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """``[N, K, 3]``."""
        return torch.tensor(self.points, dtype=dtype, device=device)


@TRANSFORMS.register_module()
class LoadKeypoints(LoadAnnotations):
    """Loads boxes, and keypoints as ``gt_masks``, of a `KeypointDataset`; replaces mmdet's `LoadAnnotations`."""

    def __init__(self) -> None:
        super().__init__(with_bbox=True)

    def transform(self, results: dict) -> dict:
        found = [one["mask"] for one in results["instances"]]
        mirrored = found[0]["mirrored"] if found else ()
        points = np.array([one["points"] for one in found], np.float32).reshape(len(found), len(mirrored), 3)
        return {**super().transform(results), "gt_masks": Keypoints(points, *results["img_shape"], mirrored)}
