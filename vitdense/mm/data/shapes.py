"""The embedded data set: shapes to detect and segment, drawn on first use with numpy and OpenCV.

The class of an object is its shape. Colour is a weak cue: each class has a mean hue, and the hues of classes overlap.
Texture, size, rotation and lighting are random. The ground truth of an image is written as COCO instances (visible
pixels only, run-length encoded), as a label map and as panoptic segments.
"""

import colorsys
import json
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import cv2
import numpy as np

from vitdense.errors import OptionError

__all__ = ["CLASSES", "PALETTE", "STUFF", "DrawnOnDemand", "draw_dataset", "draw_image"]

CLASSES = ("disc", "ring", "square", "triangle", "star", "cross", "bar", "crescent")
PALETTE = [(220, 60, 60), (60, 120, 230), (60, 180, 75), (240, 190, 30),
           (150, 70, 200), (60, 200, 210), (240, 120, 190), (150, 110, 60)]  # fmt: skip
STUFF = ("background",)

SPLITS = ("train", "val")
EMPTY = (20, 7)  # image 7 of every 20 has no object
CROWD = (25, 3)  # image 3 of every 25 has a crowd
MIN_SIZE = 64  # pixels; in smaller images shapes cannot be told apart
SIDES = (20, 150)  # smallest and largest sqrt(area) of an object in pixels, in an image whose shorter side is 256
MIN_VISIBLE = 0.5  # share of a shape that must be visible: not occluded, inside the image
SUPERSAMPLE = 4
CONTRAST = 0.2  # largest difference between the two colours of a texture, per channel
MIN_DISTANCE = 0.3  # between the colours of an object and its background; larger than CONTRAST


class Instance(NamedTuple):
    """An annotated object or, with `crowd`, a region of many objects."""

    label: int  # index into `CLASSES`
    mask: np.ndarray  # visible pixels, bool [H, W]
    area: float  # pixels of the whole shape, occluded ones included
    crowd: bool = False

    @property
    def visible(self) -> float:
        """Visible share of the whole shape; slightly above 1 by rounding to pixels."""
        return float(self.mask.sum() / self.area)


class DrawnOnDemand:
    """Mixin for a data set class of mm (first base class): draws the embedded data set before it is loaded.

    Args:
        draw: Arguments of `draw_dataset` other than ``root``, which is ``data_root``.
        *args, **kwargs: Arguments of the data set class.
    """

    drawn_on_demand = True  # read by the checks before training: files may be missing
    draws = staticmethod(lambda *args, **options: draw_dataset(*args, **options))

    def __init__(self, *args: Any, draw: dict | None = None, **kwargs: Any) -> None:
        self.draw = draw or {}
        super().__init__(*args, **kwargs)

    def full_init(self) -> None:
        from mmengine.logging import print_log  # here, so that `draw_image` works without it

        if not Path(self.data_root).exists():
            print_log(f"drawing the data set into {self.data_root}, once, in about a minute", logger="current")
        self.draws(self.data_root, **self.draw)
        super().full_init()


def draw_dataset(
    root: str | Path,
    num_train: int = 1600,
    num_val: int = 200,
    image_size: tuple[int, int] = (256, 256),
    seed: int = 0,
    workers: int | None = None,
    draw_into: Callable[[Path, dict, int], None] | None = None,
) -> Path:
    """Draw the data set into ``root`` unless it exists already, and return the folder.

    Every image has its own random seed ``(seed, split, index)``; the numbers of workers and images do not change it.
    ``root`` then has ``{train,val}/*.jpg`` and, for both splits:

    - ``annotations/instances_{train,val}.json``: COCO, compressed RLE; crowd regions with ``iscrowd=1``;
    - ``semantic/{train,val}/*.png``: uint8 [H, W], 0 background, 1 + index into ``CLASSES``, 255 crowd;
    - ``panoptic/panoptic_{train,val}.json`` and ``panoptic/{train,val}/*.png``: COCO's panoptic format; 1 to n are the
      instances, from back to front, n + 1 is the background.

    Args:
        root: Folder to create, with its parents.
        num_train, num_val: Images per split.
        image_size: Height and width in pixels.
        seed: Random seed.
        workers: Threads; default one per core, at most 8.
        draw_into: Function that writes another data set with these options into a folder.

    Raises:
        ValueError: An argument is out of range, or ``root`` has other numbers of images; it stays unchanged.
    """
    if min(num_train, num_val) < 1:
        raise OptionError(f"num_train, num_val: got {num_train}, {num_val}, expected at least 1 each")
    if len(image_size) != 2 or min(image_size) < MIN_SIZE:
        raise OptionError(f"image_size: got {image_size}, expected (height, width) of at least {MIN_SIZE} pixels")
    root = Path(root)
    if not root.exists():
        root.parent.mkdir(parents=True, exist_ok=True)
        options = {"num_train": num_train, "num_val": num_val, "image_size": [*image_size], "seed": seed}
        with TemporaryDirectory(prefix=f".{root.name}.", dir=root.parent) as folder:
            drawn = Path(folder, root.name)
            (draw_into or _draw_into)(drawn, options, workers or min(8, os.cpu_count() or 1))
            try:
                drawn.rename(root)
            except OSError:  # another process was the first to rename
                if not root.exists():
                    raise
    for split, number in zip(SPLITS, (num_train, num_val)):
        if (found := len([*root.glob(f"{split}/*.jpg")])) != number:
            fix = "choose another data_root, set the arguments it was drawn with, or delete the folder"
            raise OptionError(f"{root}: got {found} images in {split}, expected num_{split}={number}; {fix}")
    return root


def write_splits(
    folder: Path,
    options: dict,
    workers: int,
    draw_image: Callable[..., tuple[np.ndarray, list]],
    annotate: Callable[..., dict],
    name: str,
    kinds: list,
) -> None:
    """Write both splits of a data set of boxes as ``annotations/{name}_{split}.json`` and ``{split}/*.jpg``.

    ``draw_image(rng, size)`` returns pixels, [H, W, 3] uint8 RGB, and objects; ``annotate(object, size)`` an object's
    annotation, without ids; `kinds` are the categories.
    """
    with ThreadPoolExecutor(workers) as pool:
        for split in SPLITS:
            for part in (split, "annotations"):
                (folder / part).mkdir(parents=True, exist_ok=True)
            draw = partial(_write_sample, folder, split, options, draw_image, annotate)
            images, objects = zip(*pool.map(draw, range(options[f"num_{split}"])))
            annotations = [{"id": i, **one} for i, one in enumerate(chain.from_iterable(objects), 1)]
            content = {"images": images, "annotations": annotations, "categories": kinds}
            (folder / f"annotations/{name}_{split}.json").write_text(json.dumps(content), encoding="utf-8")


def _write_sample(
    folder: Path, split: str, options: dict, draw_image: Callable, annotate: Callable, index: int
) -> tuple[dict, list[dict]]:
    size, name, about = options["image_size"], f"{index + 1:06d}.jpg", {"image_id": index + 1, "iscrowd": 0}
    image, objects = draw_image(np.random.default_rng((options["seed"], SPLITS.index(split), index)), size)
    _write_image(folder / split / name, image[..., ::-1])
    entry = {"id": index + 1, "file_name": name, "height": size[0], "width": size[1]}
    return entry, [{**about, **annotate(one, size)} for one in objects]


def _write_image(path: Path, pixels: np.ndarray) -> None:
    """Write grey or BGR pixels; cv2.imwrite would return False where the disk is full."""
    path.write_bytes(cv2.imencode(path.suffix, pixels, (cv2.IMWRITE_JPEG_QUALITY, 95))[1].tobytes())


def _draw_into(folder: Path, options: dict, workers: int) -> None:
    things = [{"id": i, "name": name, "supercategory": "shape"} for i, name in enumerate(CLASSES, 1)]
    kinds = [{"id": i, "name": x, "isthing": int(x in CLASSES)} for i, x in enumerate((*CLASSES, *STUFF), 1)]
    info = {"info": {"description": "vitdense shapes", "version": "2"}, "licenses": []}
    # Threads, which also run inside data-loader workers and notebooks: OpenCV and numpy release the interpreter lock.
    with ThreadPoolExecutor(workers) as pool:
        for split in SPLITS:
            for part in (split, f"semantic/{split}", f"panoptic/{split}", "annotations"):
                (folder / part).mkdir(parents=True, exist_ok=True)
            draw = partial(_draw_sample, folder, split, options["image_size"], options["seed"])
            images, objects, segments = zip(*pool.map(draw, range(options[f"num_{split}"])))
            annotations = [{"id": i, **one} for i, one in enumerate(chain.from_iterable(objects), 1)]
            instances = {**info, "images": images, "annotations": annotations, "categories": things}
            panoptic = {"images": images, "annotations": segments, "categories": kinds}
            for name, content in (("annotations/instances", instances), ("panoptic/panoptic", panoptic)):
                (folder / f"{name}_{split}.json").write_text(json.dumps(content), encoding="utf-8")


def _draw_sample(folder: Path, split: str, size: Sequence[int], seed: int, index: int) -> tuple[dict, list[dict], dict]:
    from pycocotools import mask as rle  # here, so that `draw_image` works without it

    rng = np.random.default_rng((seed, SPLITS.index(split), index))
    empty, crowd = (index % every == at for every, at in (EMPTY, CROWD))
    image, instances = draw_image(rng, size, empty=empty, crowd=crowd)
    number, name, background = index + 1, f"{index + 1:06d}", len(instances) + 1
    labels, ids = np.zeros(size, np.uint8), np.full(size, background, np.uint8)
    for i, one in enumerate(instances, 1):
        labels[one.mask], ids[one.mask] = 255 if one.crowd else one.label + 1, i
    annotations, segments = [], []
    rest = Instance(len(CLASSES), ids == background, 0)
    for i, one in enumerate((*instances, rest), 1):
        code = rle.encode(np.asfortranarray(one.mask, np.uint8))
        kind, box, area = {"category_id": one.label + 1, "iscrowd": int(one.crowd)}, rle.toBbox(code), rle.area(code)
        mask = {"size": code["size"], "counts": code["counts"].decode()}
        shape = {"bbox": box.tolist(), "area": int(area), "segmentation": mask}
        annotations.append({"image_id": number, **kind, **shape})
        if area:
            segments.append({"id": i, **kind, "area": int(area), "bbox": box.astype(int).tolist()})
    for path, pixels in (
        (f"{split}/{name}.jpg", image[..., ::-1]),
        (f"semantic/{split}/{name}.png", labels),
        (f"panoptic/{split}/{name}.png", np.dstack([labels * 0, labels * 0, ids])),  # BGR
    ):
        _write_image(folder / path, pixels)
    entry = {"id": number, "file_name": f"{name}.jpg", "height": size[0], "width": size[1]}
    return entry, annotations[:-1], {"image_id": number, "file_name": f"{name}.png", "segments_info": segments}


def draw_image(
    rng: np.random.Generator, size: Sequence[int], *, empty: bool = False, crowd: bool = False
) -> tuple[np.ndarray, list[Instance]]:
    """Draw one image: uint8 [H, W, 3] RGB, and its instances, from back to front, with disjoint masks.

    Args:
        rng: Random generator.
        size: Height and width in pixels.
        empty: Leave out objects.
        crowd: Add a cluster of tiny shapes of one class behind the objects, annotated as one region.
    """
    scene = Scene(rng, size)
    scene.add_clutter()
    if crowd:
        scene.add_crowd()
    if not empty:
        scene.add_objects(int(rng.integers(1, 9)))
    return scene.render(), scene.instances


class Scene:
    """A canvas that is painted from back to front, and its instances with their visible pixels."""

    def __init__(self, rng: np.random.Generator, size: Sequence[int]) -> None:
        self.rng, self.size, self.instances = rng, tuple(size), []
        self.scale = min(size) / 256  # of all lengths
        self.canvas = np.zeros((3, *size), np.float32)  # RGB in 0..1, in planes: numpy is faster on long rows
        self._paint(np.ones(self.size, np.float32), self._colour(rng.uniform(), (0.0, 0.35)))

    def add_clutter(self) -> None:
        """Add distractors: blurred patches of another texture, and thin lines."""
        rng, (height, width) = self.rng, self.size
        for _ in range(rng.integers(0, 4)):
            patch = _ellipse(rng, 0.4)
            cover = self._rasterize(patch, rng.uniform(15, 60) * self.scale, rng.uniform(0, 1, 2) * (width, height))
            cover = cv2.GaussianBlur(cover, (0, 0), 5 * self.scale) * np.float32(rng.uniform(0.3, 0.7))
            self._paint(cover, self._jitter(self.canvas.mean((1, 2)), 0.3))
        for _ in range(rng.integers(0, 5)):
            points = rng.uniform(0, 1, (rng.integers(2, 5), 2)) * (width, height)
            line = np.zeros(self.size, np.uint8)  # the only dtype with anti-aliased lines in OpenCV
            cv2.polylines(line, [np.int32(points)], False, 255, int(rng.integers(1, 3)), cv2.LINE_AA)
            cover = line * np.float32(rng.uniform(0.4, 0.9) / 255)
            self._paint(cover, self._jitter(self.canvas.mean((1, 2)), 0.5))

    def add_crowd(self) -> None:
        """Add a cluster of tiny overlapping shapes of one class, one region."""
        rng, label, background = self.rng, int(self.rng.integers(len(CLASSES))), self.canvas.mean((1, 2))
        centre, spread = rng.uniform(0.2, 0.8, 2) * self.size[::-1], rng.uniform(12, 24) * self.scale
        region = np.zeros(self.size, bool)
        for _ in range(rng.integers(18, 40)):
            radius = max(4.0, rng.uniform(5, 8) * self.scale)
            cover = self._rasterize(_outline(rng, label), radius, centre + rng.normal(0, spread, 2))
            self._paint(cover, self.class_colour(label, background))
            region |= cover >= 0.5
        self.instances.append(Instance(label, region, float(region.sum()), crowd=True))

    def add_objects(self, count: int) -> None:
        """Add up to ``count`` objects, the largest first; objects without enough room are left out."""
        rng, (height, width) = self.rng, self.size
        sides = np.exp(rng.uniform(*np.log(SIDES), count)) * self.scale
        for side in sorted(sides.clip(9), reverse=True):
            label = int(rng.integers(len(CLASSES)))
            outline = _outline(rng, label)
            whole, *holes = (cv2.contourArea(contour.astype(np.float32)) for contour in outline)
            area = whole - sum(holes)
            radius = min(side / math.sqrt(area), 0.45 * min(self.size))
            for _ in range(15):
                centre = rng.uniform(0.45 * radius, np.array((width, height)) - 0.45 * radius)
                cover = self._rasterize(outline, radius, centre)
                new = Instance(label, cover >= 0.5, area * radius**2)
                rest = [old._replace(mask=old.mask & ~new.mask) for old in self.instances]
                if all(instance.visible >= MIN_VISIBLE for instance in (*rest, new)):
                    self.instances = [*rest, new]
                    self._paint(cover, self.class_colour(label, self.canvas[:, new.mask].mean(1)))
                    break

    def paint(self, strokes: np.ndarray, colour: np.ndarray) -> None:
        self._paint(strokes / np.float32(255), colour)

    def render(self) -> np.ndarray:
        """The canvas with lighting, blur and noise, uint8 [H, W, 3]."""
        rng, (height, width) = self.rng, self.size
        angle, strength = rng.uniform(0, 2 * np.pi), rng.uniform(0, 0.25)
        down, right = np.linspace(-0.5, 0.5, height)[:, None], np.linspace(-0.5, 0.5, width)
        light = 1 + strength * (right * np.cos(angle) + down * np.sin(angle))
        image = np.moveaxis(self.canvas * light.astype(np.float32), 0, -1).copy()  # [H, W, 3]
        if rng.random() < 0.4:
            image = cv2.GaussianBlur(image, (0, 0), rng.uniform(0.4, 0.9))
        image += rng.standard_normal(image.shape, np.float32) * np.float32(rng.uniform(0.005, 0.03))
        return np.rint(image.clip(0, 1) * 255).astype(np.uint8)

    def _rasterize(self, outline: list[np.ndarray], radius: float, centre: np.ndarray) -> np.ndarray:
        """An anti-aliased mask, float32 [H, W] in 0..1, of an outline around a centre (x, y), rotated at random."""
        angle = self.rng.uniform(0, 2 * np.pi)
        rotation = np.array([(np.cos(angle), np.sin(angle)), (-np.sin(angle), np.cos(angle))])
        fine = np.zeros((self.size[0] * SUPERSAMPLE, self.size[1] * SUPERSAMPLE), np.uint8)
        # OpenCV's coordinates refer to pixel centres (hence - 0.5), in fixed point with 4 fractional bits (* 16)
        points = [((p @ rotation * radius + centre) * SUPERSAMPLE - 0.5) * 16 for p in outline]
        cv2.fillPoly(fine, [np.rint(p).astype(np.int32) for p in points], 255, cv2.LINE_8, 4)
        return cv2.resize(fine, self.size[::-1], interpolation=cv2.INTER_AREA) / np.float32(255)

    def _paint(self, cover: np.ndarray, colour: np.ndarray) -> None:
        mix, other = self._texture(), self._jitter(colour, CONTRAST)
        first, change = np.float32(colour)[:, None, None], np.float32(other - colour)[:, None, None]
        self.canvas += cover * (first + mix * change - self.canvas)

    def _texture(self) -> np.ndarray:
        """A random pattern: the share of a second colour, float32 [H, W]."""
        rng, (height, width) = self.rng, self.size
        ys, xs = np.arange(height, dtype=np.float32)[:, None], np.arange(width, dtype=np.float32)
        angle, period = rng.uniform(0, 2 * np.pi), rng.uniform(8, 32) * max(self.scale, 0.5)
        c, s = math.cos(angle) * 2 * math.pi / period, math.sin(angle) * 2 * math.pi / period
        u, v = xs * c + ys * s + rng.uniform(0, 6), ys * c - xs * s + rng.uniform(0, 6)
        cells = [max(2, round(n / period) + 1) for n in self.size]
        patterns = {
            "flat": lambda: np.zeros(self.size, np.float32),
            "stripes": lambda: np.sin(u) * 2 + 0.5,
            "checks": lambda: np.sin(u) * np.sin(v) * 4 + 0.5,
            "spots": lambda: (np.cos(u) + np.cos(v) - 0.7) * 2,
            "clouds": lambda: cv2.resize(rng.random(cells, np.float32), (width, height), interpolation=cv2.INTER_CUBIC),
        }
        return patterns[rng.choice(list(patterns))]().clip(0, 1)

    def _jitter(self, colour: np.ndarray, amount: float) -> np.ndarray:
        return np.clip(colour + self.rng.uniform(-amount, amount, 3), 0, 1)

    def _colour(self, hue: float, saturation: tuple[float, float]) -> np.ndarray:
        """An RGB colour in 0..1 of a hue (0..1 is the whole circle), with random saturation and brightness."""
        return np.array(colorsys.hsv_to_rgb(hue % 1, self.rng.uniform(*saturation), self.rng.uniform(0.25, 0.95)))

    def class_colour(self, label: int, under: np.ndarray) -> np.ndarray:
        """A colour around the hue of the class that differs from its background ``under``, if 12 draws find one."""
        for _ in range(12):
            hue = (label + self.rng.normal(0, 0.45)) / len(CLASSES)  # hues of neighbouring classes overlap
            colour = self._colour(hue, (0.4, 1.0))
            if np.linalg.norm(colour - under) >= MIN_DISTANCE:
                break
        return colour


def _arc(angles: np.ndarray) -> np.ndarray:
    return np.stack([np.cos(angles), np.sin(angles)], 1)


def _ellipse(rng: np.random.Generator, min_ratio: float) -> list[np.ndarray]:
    return [_arc(np.linspace(0, 2 * np.pi, 72, endpoint=False)) * (1, rng.uniform(min_ratio, 1))]


def _outline(rng: np.random.Generator, label: int) -> list[np.ndarray]:
    """The contours, each [n, 2], of a random shape of the class in the unit circle. The second is a hole."""
    match CLASSES[label]:
        case "disc":
            return _ellipse(rng, 0.88)
        case "ring":
            (outer,) = _ellipse(rng, 0.88)
            return [outer, outer * rng.uniform(0.5, 0.65)]
        case "square":
            return [_arc(np.radians([45, 135, 225, 315])) * (1, rng.uniform(0.8, 1))]
        case "triangle":
            return [_arc(np.radians([90, 210, 330]) + rng.uniform(-0.15, 0.15, 3))]
        case "star":
            radius = np.where(np.arange(10) % 2, rng.uniform(0.38, 0.48), 1)
            return [_arc(np.radians(np.arange(0, 360, 36))) * radius[:, None]]
        case "cross":
            half = rng.uniform(0.24, 0.32)
            end = math.sqrt(1 - half**2)
            arm, quarter_turn = np.array([(end, -half), (end, half), (half, half)]), np.array([(0, 1), (-1, 0)])
            return [np.concatenate([arm @ np.linalg.matrix_power(quarter_turn, i) for i in range(4)])]
        case "bar":
            half = rng.uniform(0.1, 0.16)
            return [np.array([(1, half), (-1, half), (-1, -half), (1, -half)])]
        case "crescent":  # the unit circle minus a circle of radius q around (d, 0); they intersect at (x, +-y)
            q, d = rng.uniform(0.78, 0.88), rng.uniform(0.42, 0.55)
            x = (1 - q * q + d * d) / (2 * d)
            y = math.sqrt(1 - x * x)
            outer, inner = math.atan2(y, x), math.atan2(y, x - d)
            out, back = np.linspace(outer, 2 * np.pi - outer, 48), np.linspace(2 * np.pi - inner, inner, 48)
            return [np.concatenate([_arc(out), _arc(back[1:-1]) * q + (d, 0)])]
