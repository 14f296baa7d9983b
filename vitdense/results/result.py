"""What a detector or a segmentor found in an image, as pictures and in the formats of other tools."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from PIL import Image

from vitdense.errors import OptionError
from vitdense.files import atomic_write
from vitdense.results import draw
from vitdense.runtime import MaybeNone, Output

if TYPE_CHECKING:
    import supervision

SHOWN = 5  # objects, segments or classes in a line of text


@dataclass(eq=False)
class Result(Output):
    """What a model found in an image of H x W pixels: the fields of `vitdense.runtime.Output`, and these.

    A field that the model does not predict is None, and a method that needs it raises `OptionError`. Masks are kept as
    run-length codes. `masks` decodes all of them at each access, N * H * W bytes; `mask` decodes one.

    Attributes:
        rle: Masks in COCO's run-length code: ``{"size": [H, W], "counts": text}``.
        image: The pixels, [H, W, 3] uint8 RGB; an image with an EXIF orientation is turned.
        names: Names of the classes.
        palette: Their colours, [classes, 3] uint8 RGB; by default `draw.distinct_colours`.
        skeleton: Pairs of keypoints that `plot` joins.
        category_ids: Ids of the classes in the data of the training; empty where they are not known.
    """

    rle: list[dict] | MaybeNone = None
    image: np.ndarray | MaybeNone = None
    names: Sequence[str] = ()
    palette: np.ndarray | MaybeNone = None
    skeleton: Sequence[tuple[int, int]] = ()
    category_ids: Sequence[int] = ()

    def __post_init__(self) -> None:
        if self.rle is not None:
            del self.masks  # the field, for the property below
        elif self.masks is not None:
            self.rle = codes_of(self)
        if self.palette is None:
            self.palette = draw.distinct_colours(len(self.names))

    @cached_property  # type: ignore[misc]
    def masks(self) -> np.ndarray:  # type: ignore[override]  # the field, decoded when it is used
        """The masks of all objects, [N, H, W] bool."""
        size = self.rle[0]["size"] if self.rle else (0, 0) if self.image is None else self.image.shape[:2]
        return np.array([self.mask(i) for i in range(len(self.rle))], np.bool_).reshape(len(self.rle), *size)

    def __len__(self) -> int:
        """Number of objects; without objects, of panoptic segments; for a segmentor, of classes in the image."""
        if self.boxes is not None:
            return len(self.boxes)
        return len(np.unique(self.semantic)) if self.segments is None else len(self.segments)

    def __repr__(self) -> str:
        """What is in the image: ``Result(480x640: 3 objects, masks; cat 0.98, dog 0.91, dog 0.40)``."""
        names, found = dict(enumerate(self.names)), []
        if self.boxes is not None:
            own = {"masks": self.rle, "keypoints": self.keypoints, "corners": self.corners}
            kinds = [kind for kind, values in own.items() if values is not None]
            what = ", ".join([f"{len(self)} object{'' if len(self) == 1 else 's'}", *kinds])
            found = [f"{names.get(i, i)} {score:.2f}" for i, score in zip(self.labels.tolist(), self.scores)]
        elif self.segments is not None:
            what = f"{len(self)} segment{'' if len(self) == 1 else 's'}"
            found = [str(names.get(one["label"], one["label"])) for one in self.segments]
        elif self.semantic is not None:
            what, pairs = "classes", zip(*np.unique(self.semantic, return_counts=True))
            shares = sorted(((n / self.semantic.size, int(i)) for i, n in pairs), reverse=True)
            found = [f"{names.get(i, i)} {share:.0%}" for share, i in shares]
        else:
            what = "nothing"
        size = "" if self.image is None else "{}x{}: ".format(*self.image.shape[:2])
        shown = ", ".join([*found[:SHOWN], *(["..."] if len(found) > SHOWN else [])])
        return f"{type(self).__name__}({size}{what}{'; ' if shown else ''}{shown})"

    def mask(self, i: int) -> np.ndarray:
        """The mask of an object, [H, W] bool.

        Raises:
            OptionError: The detector has no masks, or the model no objects.
        """
        self._need("rle", "mask")
        from pycocotools import mask as rle

        columns = rle.decode(self.rle[i]).T  # [W, H]
        return cv2.transpose(columns).view(bool)

    def plot(self) -> Image.Image:
        """The image with boxes, masks, keypoints and scores; or with classes or segments, and a legend to the right."""
        self._need("image", "plot")
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
        masks = (None if self.rle is None else self.mask(i) for i in order)
        colours = self.palette[self.labels[::-1]]
        outlines = None if self.corners is None else self.corners[::-1]
        drawn = draw.instances(self.image, boxes, texts, colours, masks, outlines=outlines)
        if self.keypoints is not None:
            drawn = draw.skeletons(drawn, self.keypoints[::-1], self.skeleton, colours)
        return Image.fromarray(drawn)

    def save(self, path: str | Path) -> None:
        """Write `plot` to a file in the format of its suffix. A JPEG gets a quality without visible artefacts."""
        write_picture(Path(path), self.plot())

    def to_coco(self, image_id: int = 0, category_ids: Sequence[int] | None = None) -> list[dict[str, Any]]:
        """The objects as results that `COCO.loadRes` takes, with ``bbox``: left, upper, width, height in pixels.
        Keypoints are x, y and score of each; corners are a polygon, ``segmentation``.

        Args:
            image_id: Id of the image in the data set.
            category_ids: Ids of `names`; by default the ids of the training data, or from 1 on if they are not known.

        Raises:
            OptionError: The result has no objects: it is a segmentor's, or a panoptic model's segments; or the class
                of an object has no id.
        """
        self._need("boxes", "to_coco")
        ids = category_ids if category_ids is not None else self.category_ids or range(1, len(self.names) + 1)
        if self.labels.max(initial=-1) >= len(ids):
            raise OptionError(f"category_ids: got {len(ids)} ids, expected one for each class")
        found = []
        for i, (x1, y1, x2, y2) in enumerate(self.boxes.tolist()):
            score, label = float(self.scores[i]), int(self.labels[i])
            one = {"image_id": image_id, "category_id": ids[label], "bbox": [x1, y1, x2 - x1, y2 - y1], "score": score}
            if self.rle is not None:
                one["segmentation"] = self.rle[i]
            if self.keypoints is not None:
                one["keypoints"] = self.keypoints[i].ravel().tolist()
            if self.corners is not None:
                one["segmentation"] = [self.corners[i].ravel().tolist()]
            found.append(one)
        return found

    def to_supervision(self) -> "supervision.Detections":
        """The objects as `supervision.Detections`; that package is not installed with this one.

        Keypoints are in its ``data["keypoints"]``, [N, K, 3]: x, y and score; corners in ``data["xyxyxyxy"]``, [N, 4,
        2], where `supervision.OrientedBoxAnnotator` looks for them.
        """
        self._need("boxes", "to_supervision")
        import supervision

        data = {"class_name": np.array(self.names)[self.labels]}
        if self.keypoints is not None:
            data["keypoints"] = self.keypoints
        if self.corners is not None:
            data["xyxyxyxy"] = self.corners
        options: dict[str, Any] = {"mask": self.masks, "confidence": self.scores, "class_id": self.labels}
        return supervision.Detections(self.boxes, data=data, **options)

    def _need(self, name: str, method: str) -> None:
        if getattr(self, name) is None:
            has = [
                f".{key}" for key, value in vars(self).items() if value is not None and key in Output.__annotations__
            ]
            raise OptionError(f"{method}: got a result without .{name}; it has {', '.join(has) or 'no field'}")


def codes_of(found: Output) -> list[dict] | None:
    """The masks of objects in COCO's run-length code, as `Result.rle`; None without masks."""
    from pycocotools import mask as rle

    if getattr(found, "rle", None) is not None or found.masks is None:
        return getattr(found, "rle", None)
    return [as_text(rle.encode(np.asfortranarray(mask, np.uint8))) for mask in found.masks]


def as_text(code: dict) -> dict:
    """COCO's run-length code of a mask with its counts as text, for JSON."""
    counts = code["counts"]
    return {"size": list(code["size"]), "counts": counts if isinstance(counts, str) else counts.decode()}


def write_picture(path: Path, picture: Image.Image) -> None:
    """Write a picture to a file, a JPEG without visible artefacts at letters and edges."""
    is_jpeg = path.suffix.lower() in (".jpg", ".jpeg")
    with atomic_write(path) as scratch:
        options: dict[str, Any] = {"quality": 95, "subsampling": 0} if is_jpeg else {}
        picture.save(scratch, **options)
