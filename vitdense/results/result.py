"""What a detector or a segmentor found in an image."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from PIL import Image

from vitdense.errors import OptionError
from vitdense.files import atomic_write
from vitdense.results import draw

if TYPE_CHECKING:
    import supervision


@dataclass(eq=False)
class Result:
    """The objects of a detector, the one with the highest score first, the classes of a segmentor's pixels, or the
    segments of a panoptic model, which may have objects too.

    Attributes:
        image: The pixels, [H, W, 3] uint8 RGB; an image with an EXIF orientation is turned.
        names: Of the classes.
        palette: Their colours, [classes, 3] uint8 RGB.
        boxes: [N, 4] float32: left, upper, right and lower edge in pixels. Of a segmentor, as the next two: None.
        scores: [N] float32, 0 to 1.
        labels: [N] int64, indices of `names`.
        rle: Masks of a detector that has them, in COCO's run-length code: ``{"size": [H, W], "counts": text}``.
        semantic: [H, W] int64, indices of `names`; of a detector: None.
        panoptic: [H, W] int64, ids of segments; 0 where there is none. Of other models, as the next: None.
        segments: Of every id, from 1 on: ``{"id", "label": index of names, "score": 0 to 1, or None where the model has
            none, "is_thing": bool}``. A class of stuff has one segment at most.
    """

    image: np.ndarray = field(repr=False)
    names: Sequence[str]
    palette: np.ndarray = field(repr=False)
    boxes: np.ndarray | None = None
    scores: np.ndarray | None = None
    labels: np.ndarray | None = None
    rle: list[dict] | None = field(default=None, repr=False)
    semantic: np.ndarray | None = field(default=None, repr=False)
    panoptic: np.ndarray | None = field(default=None, repr=False)
    segments: list[dict[str, Any]] | None = None

    def __eq__(self, other: object) -> bool:
        """Whether all fields have the same values."""
        if not isinstance(other, Result):
            return NotImplemented
        return all(_is_same(getattr(self, field.name), getattr(other, field.name)) for field in fields(self))

    __hash__ = None

    def __len__(self) -> int:
        """Number of objects; of a panoptic model without them, of segments; of a segmentor, of classes that are
        present."""
        if self.boxes is not None:
            return len(self.boxes)
        return len(np.unique(self.semantic)) if self.segments is None else len(self.segments)

    @cached_property
    def masks(self) -> np.ndarray | None:
        """[N, H, W] bool: N * H * W bytes. `mask` gives one of them."""
        if self.rle is None:
            return None
        return np.array([self.mask(i) for i in range(len(self))], bool).reshape(-1, *self.image.shape[:2])

    def mask(self, i: int) -> np.ndarray | None:
        """The mask of an object, [H, W] bool; None of a detector without masks."""
        if self.rle is None:
            return None
        from pycocotools import mask as rle

        columns = rle.decode(self.rle[i]).T  # [W, H]
        return cv2.transpose(columns).view(bool)

    def plot(self) -> Image.Image:
        """The image with boxes, masks and scores, or with classes or segments and a legend, which makes it wider."""
        if self.panoptic is not None:
            labels = np.array([len(self.names), *(one["label"] for one in self.segments)])
            colours = np.concatenate([self.palette, np.zeros((1, 3), np.uint8)])  # the last where there is no segment
            colours = draw.shades(colours[labels], labels.tolist())
            drawn = draw.overlay(self.image, self.panoptic, colours)
            shares = draw.class_shares(labels[self.panoptic], len(self.names) + 1)[:-1]
            return Image.fromarray(draw.with_legend(drawn, draw.drawable(self.names), self.palette, shares))
        if self.boxes is None:
            drawn = draw.overlay(self.image, self.semantic, self.palette)
            shares = draw.class_shares(self.semantic, len(self.names))
            return Image.fromarray(draw.with_legend(drawn, draw.drawable(self.names), self.palette, shares))
        order = range(len(self))[::-1]  # the highest score on top
        boxes = [(x1, y1, x2 - x1, y2 - y1) for x1, y1, x2, y2 in self.boxes[::-1].tolist()]
        names = draw.drawable(self.names)
        texts = [f"{names[self.labels[i]]} {self.scores[i]:.2f}" for i in order]
        masks = (self.mask(i) for i in order)
        return Image.fromarray(draw.instances(self.image, boxes, texts, self.palette[self.labels[::-1]], masks))

    def save(self, path: str | Path) -> None:
        """Write `plot` to a file; the suffix says the format. A JPEG has no artefacts at letters and edges."""
        write_picture(Path(path), self.plot())

    def to_coco(self, image_id: int = 0, category_ids: Sequence[int] | None = None) -> list[dict[str, Any]]:
        """The objects as results that `COCO.loadRes` takes, with ``bbox``: left, upper, width, height in pixels.

        Args:
            image_id: Of the image in the data set.
            category_ids: Of `names`; by default 1 to their number.

        Raises:
            OptionError: The result has no objects: it is a segmentor's, or a panoptic model's segments.
        """
        self._check_objects("to_coco")
        ids = range(1, len(self.names) + 1) if category_ids is None else category_ids
        found = []
        for i, (x1, y1, x2, y2) in enumerate(self.boxes.tolist()):
            score, label = float(self.scores[i]), int(self.labels[i])
            one = {"image_id": image_id, "category_id": ids[label], "bbox": [x1, y1, x2 - x1, y2 - y1], "score": score}
            found.append(one if self.rle is None else {**one, "segmentation": self.rle[i]})
        return found

    def to_supervision(self) -> "supervision.Detections":
        """The objects as `supervision.Detections`; that package is not installed with this one.

        Raises:
            OptionError: See `to_coco`.
        """
        self._check_objects("to_supervision")
        import supervision

        names = np.array(self.names)[self.labels]
        options = {"mask": self.masks, "confidence": self.scores, "class_id": self.labels}
        return supervision.Detections(self.boxes, data={"class_name": names}, **options)

    def _check_objects(self, method: str) -> None:
        if self.boxes is None:
            kind = "semantic" if self.panoptic is None else "panoptic"
            raise OptionError(
                f"{method}: got a result without objects, expected a detector's; its pixels are in .{kind}"
            )


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    return one == other if one is None or other is None else list(one) == list(other)


def write_picture(path: Path, picture: Image.Image) -> None:
    """Write a picture to a file. A JPEG without artefacts at letters and edges."""
    is_jpeg = path.suffix.lower() in (".jpg", ".jpeg")
    with atomic_write(path) as scratch:
        picture.save(scratch, **({"quality": 95, "subsampling": 0} if is_jpeg else {}))
