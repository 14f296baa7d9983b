"""The embedded data set: shapes to detect and segment, drawn on first use with numpy and OpenCV alone.

The class of an object is its outline. Its colour leans to a hue of the class but is often that of another; texture,
size, rotation and lighting vary freely. The same drawing yields both kinds of ground truth: COCO instances (visible
part only, run-length encoded) and label maps.
"""

import colorsys
import json
import logging
import math
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

try:
    import fcntl
except ImportError:  # not on Windows: there the first rename wins and the other drawings are discarded
    fcntl = None

__all__ = ["CLASSES", "PALETTE", "ShapesError", "check_draw", "draw_dataset", "draw_image"]

CLASSES = ("disc", "ring", "square", "triangle", "star", "cross", "bar", "crescent")
PALETTE = [(220, 60, 60), (60, 120, 230), (60, 180, 75), (240, 190, 30),
           (150, 70, 200), (60, 200, 210), (240, 120, 190), (150, 110, 60)]  # fmt: skip

VERSION = 1  # raise when the same arguments would yield other pictures: older sets on disk are then refused
STAMP = "stamp.json"
IGNORE = 255  # label of crowd pixels in the semantic maps
EMPTY = (20, 7)  # image 7 of every 20 holds no object
CROWD = (25, 3)  # image 3 of every 25 holds a crowd
MIN_SIZE = 64  # pixels; below it shapes cannot be told apart
MIN_VISIBLE = 0.5  # of the whole shape; less is re-placed
MIN_PIXELS = 40
REFERENCE_SIZE = 256  # pixels of the shorter side for which object sizes are given
SIZES = (  # share of the objects, range of sqrt(area) in pixels
    (0.2, 15, 31),
    (0.6, 33, 92),
    (0.2, 100, 130),
)
SUPERSAMPLE = 4
HUE_SPREAD = 0.45  # standard deviation of a class's hue, in distances between the hues of two classes
TEXTURE = (
    0.2  # largest difference of a texture's two colours per channel; shapes differ from what is under them by more
)


class ShapesError(ValueError):
    """The data set cannot be drawn as asked, or where asked."""


@dataclass(frozen=True)
class Instance:
    """An annotated object or, with ``crowd``, a region of many that are not told apart."""

    label: int  # index into CLASSES
    mask: np.ndarray  # bool [H, W], visible pixels
    visible: float  # share of the whole shape that is seen, 0 to 1
    crowd: bool = False


def draw_dataset(
    root: str | Path,
    num_train: int = 1600,
    num_val: int = 200,
    image_size: tuple[int, int] = (256, 256),
    seed: int = 0,
    *,
    workers: int | None = None,
    log: Callable[[str], object] | None = None,
) -> Path:
    """Draw the data set into ``root`` unless it is there already, and return the folder.

    Every image is drawn from its own random stream ``(seed, split, index)``: neither the number of workers nor that of
    the images changes it. The folder appears under its name only when it is complete; processes that start together
    wait for the first.

    ``root`` then holds ``train/*.jpg``, ``val/*.jpg``, ``annotations/instances_{train,val}.json`` (COCO, compressed
    RLE; crowd regions with ``iscrowd=1`` and uncompressed RLE) and ``semantic/{train,val}/*.png`` (uint8 [H, W]:
    0 background, 1 + index into ``CLASSES``, 255 crowd).

    Args:
        root: Folder to create; its parents are created too.
        num_train: Images to train on.
        num_val: Images to evaluate on.
        image_size: Height and width in pixels.
        seed: Another seed gives other pictures.
        workers: Threads; default one per core, at most 8.
        log: Called with one line before the drawing starts; default the logger of this module.

    Raises:
        ShapesError: An argument is out of range, or ``root`` holds something else; nothing is changed then.
    """
    if root is None or not str(root):
        raise ShapesError(f"the shapes data set needs a folder to be drawn into (data_root), got {root!r}")
    root = Path(root)
    stamp = _stamp(num_train, num_val, image_size, seed)
    if _is_drawn(root, stamp):
        return root
    root.parent.mkdir(parents=True, exist_ok=True)
    with _lock(root.parent):
        if _is_drawn(root, stamp):  # by the process that held the lock
            return root
        (log or logging.getLogger(__name__).info)(f"drawing {num_train + num_val} images into {root}")
        scratch = root.parent / f".{root.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}"
        scratch.mkdir()
        try:
            _draw_into(scratch, stamp, workers or min(8, os.cpu_count() or 1))
            try:
                scratch.rename(root)
            except OSError:
                if not _is_drawn(root, stamp):
                    raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return root


def check_draw(draw: dict | None) -> dict:
    """Return the ``draw`` argument of a data set as keyword arguments of :func:`draw_dataset`.

    Raises:
        ShapesError: It is no dict, or has a key other than ``num_train``, ``num_val``, ``image_size`` and ``seed``.
    """
    known = ("num_train", "num_val", "image_size", "seed")
    draw = {} if draw is None else draw
    if not isinstance(draw, dict) or not set(draw) <= set(known):
        raise ShapesError(f"draw must be a dict with keys among {known}, got {draw!r}")
    return dict(draw)


def _stamp(num_train: int, num_val: int, image_size: tuple[int, int], seed: int) -> dict:
    """Return what identifies a drawn set, its arguments checked."""
    numbers = {"num_train": num_train, "num_val": num_val, "seed": seed}
    for name, value in numbers.items():
        least = 0 if name == "seed" else 1
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ShapesError(f"{name} must be a whole number of at least {least}, got {value!r}")
    size = list(image_size) if isinstance(image_size, (tuple, list)) else None
    if size is None or len(size) != 2 or any(not isinstance(n, int) or n < MIN_SIZE for n in size):
        raise ShapesError(f"image_size must be (height, width) of at least {MIN_SIZE} pixels each, got {image_size!r}")
    return {"data set": "vitdense shapes", "version": VERSION, **numbers, "image_size": size}


def _is_drawn(root: Path, stamp: dict) -> bool:
    """Tell whether ``root`` holds the set of ``stamp``; raise if it holds something else."""
    if not os.path.lexists(root):
        return False
    try:
        found = json.loads((root / STAMP).read_text())
    except (OSError, ValueError):
        found = None
    if found == stamp:
        return True
    if not isinstance(found, dict) or found.get("data set") != stamp["data set"]:
        raise ShapesError(
            f"{root} exists and is no drawn data set (no readable {STAMP}); choose a data_root that does not exist yet"
        )
    lines = [f"  {k}: there {found.get(k)!r}, asked for {v!r}" for k, v in stamp.items() if found.get(k) != v]
    raise ShapesError(
        f"{root} holds a data set drawn with other arguments:\n"
        + "\n".join(lines)
        + "\nChoose another data_root, ask for the arguments it was drawn with, or delete the folder."
    )


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold an advisory lock on ``folder`` where the system has one; without it, of two drawings one is discarded."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems refuse
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)  # and with it the lock


def _draw_into(folder: Path, stamp: dict, workers: int) -> None:
    """Write both splits and, last, the stamp."""
    height, width = stamp["image_size"]
    (folder / "annotations").mkdir()
    # Threads, not processes: OpenCV and numpy release the interpreter lock for most of the work, and this runs inside
    # data-loader workers, notebooks and scripts without a main guard just as well.
    with ThreadPoolExecutor(workers) as pool:
        for number, (split, count) in enumerate((("train", stamp["num_train"]), ("val", stamp["num_val"]))):
            (folder / split).mkdir()
            (folder / "semantic" / split).mkdir(parents=True)

            def draw(index: int, number: int = number, split: str = split) -> tuple[dict, list[dict]]:
                rng = np.random.default_rng((stamp["seed"], number, index))
                image, instances = draw_image(
                    rng,
                    (height, width),
                    empty=index % EMPTY[0] == EMPTY[1],
                    crowd=index % CROWD[0] == CROWD[1],
                )
                name = f"{index + 1:06d}"
                _write(folder / split / f"{name}.jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 95])
                _write(folder / "semantic" / split / f"{name}.png", _semantic(instances, (height, width)))
                info = {"id": index + 1, "file_name": f"{name}.jpg", "height": height, "width": width}
                return info, [_annotation(instance, index + 1) for instance in instances]

            futures = [pool.submit(draw, index) for index in range(count)]
            try:
                drawn = [future.result() for future in futures]
            except BaseException:
                pool.shutdown(cancel_futures=True)  # do not finish the set before the error is seen
                raise
            annotations = [annotation for _, group in drawn for annotation in group]
            for identity, annotation in enumerate(annotations, start=1):
                annotation["id"] = identity
            content = {
                "info": {"description": "vitdense shapes", "version": str(VERSION)},
                "licenses": [],
                "images": [info for info, _ in drawn],
                "annotations": annotations,
                "categories": [{"id": i, "name": c, "supercategory": "shape"} for i, c in enumerate(CLASSES, start=1)],
            }
            (folder / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
    (folder / STAMP).write_text(json.dumps(stamp, indent=1) + "\n")


def _write(path: Path, image: np.ndarray, options: list[int] | None = None) -> None:
    """Encode by the suffix of ``path`` and write, telling of a full disk where ``cv2.imwrite`` returns False."""
    _, code = cv2.imencode(path.suffix, image, options or [])
    path.write_bytes(code.tobytes())


def _semantic(instances: list[Instance], size: tuple[int, int]) -> np.ndarray:
    """Return the label map, uint8 [H, W]."""
    labels = np.zeros(size, np.uint8)
    for instance in instances:
        labels[instance.mask] = IGNORE if instance.crowd else instance.label + 1
    return labels


def _annotation(instance: Instance, image_id: int) -> dict:
    """Return the COCO annotation of one instance, still without its ``id``."""
    ys, xs = np.nonzero(instance.mask)
    x, y = int(xs.min()), int(ys.min())
    return {
        "image_id": image_id,
        "category_id": instance.label + 1,
        "iscrowd": int(instance.crowd),
        "bbox": [x, y, int(xs.max()) + 1 - x, int(ys.max()) + 1 - y],
        "area": len(ys),
        "visible": round(instance.visible, 3),  # not COCO: share of the shape that is seen
        "segmentation": _rle(instance.mask, compress=not instance.crowd),
    }


def _rle(mask: np.ndarray, compress: bool) -> dict:
    """Return COCO's column-wise run lengths of a bool [H, W] mask, which starts with a run of zeros.

    Compressed, the runs (from the fourth on, their difference to the run two before) are written in 5-bit groups,
    least significant first, as characters from 48 on; bit 6 says that more groups follow. This is ``rleToString`` in
    pycocotools' maskApi.c.
    """
    flat = mask.ravel(order="F")
    edges = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    runs = np.diff([0, *edges.tolist(), flat.size]).tolist()
    if flat[0]:
        runs.insert(0, 0)
    size = [int(n) for n in mask.shape]
    if not compress:
        return {"size": size, "counts": runs}
    text = []
    for i, run in enumerate(runs):
        value = run - runs[i - 2] if i > 2 else run
        more = True
        while more:
            group = value & 31
            value >>= 5
            more = value != (-1 if group & 16 else 0)
            text.append(chr((group | 32 if more else group) + 48))
    return {"size": size, "counts": "".join(text)}


def draw_image(
    rng: np.random.Generator, size: tuple[int, int], *, empty: bool = False, crowd: bool = False
) -> tuple[np.ndarray, list[Instance]]:
    """Draw one picture.

    Args:
        rng: Source of every choice.
        size: Height and width in pixels.
        empty: Background and clutter only.
        crowd: Put a cluster of tiny shapes of one class behind the objects, annotated as one region.

    Returns:
        The image, uint8 [H, W, 3], and its instances, from back to front, with disjoint masks.
    """
    scene = _Scene(rng, size)
    scene.add_clutter()
    if crowd and not empty:
        scene.add_crowd()
    if not empty:
        scene.add_objects(int(rng.integers(1, 9)))
    return scene.develop(), scene.instances()


class _Scene:
    """A canvas that is painted from back to front and remembers whose pixels are seen."""

    def __init__(self, rng: np.random.Generator, size: tuple[int, int]) -> None:
        self.rng = rng
        self.size = size
        self.unit = min(size) / REFERENCE_SIZE  # pixels per pixel of the reference size
        base = _colour(rng, hue=rng.uniform(), saturation=(0.0, 0.35))
        self.canvas = _texture(rng, size, base, _near(rng, base, TEXTURE), self.unit)  # [H, W, 3] in 0..1
        self.owner = np.zeros(size, np.int32)  # [H, W]: 0 background, else 1 + index into the lists below
        self.labels: list[int] = []
        self.crowds: list[bool] = []
        self.whole: list[float] = []  # area in pixels of the shape without border or occluder
        self.seen: list[int] = []  # visible pixels
        self.places: list[tuple[float, float, float]] = []  # x, y, circumscribed radius

    def add_clutter(self) -> None:
        """Add what is no object: soft patches of other texture, and thin lines."""
        rng, (height, width) = self.rng, self.size
        for _ in range(rng.integers(0, 4)):
            # a wobbly outline, blurred until it has no edge
            turn = np.linspace(0, 2 * np.pi, 40, endpoint=False)
            radius = rng.uniform(15, 60) * self.unit * (1 + 0.3 * np.sin(turn * rng.integers(2, 5) + rng.uniform(0, 6)))
            centre = rng.uniform(0, 1, 2) * (width, height)
            outline = np.stack([np.cos(turn), np.sin(turn)], 1) * radius[:, None] + centre
            window, cover = _cover([outline], self.size)
            if cover.size:
                cover = cv2.GaussianBlur(cover, (0, 0), 5 * self.unit) * rng.uniform(0.3, 0.7)
                colour = self.canvas[window].reshape(-1, 3).mean(0)
                colour = _near(rng, colour, 0.3)
                self._blend(window, cover, _texture(rng, cover.shape, colour, _near(rng, colour, TEXTURE), self.unit))
        for _ in range(rng.integers(0, 5)):
            points = rng.uniform(0, 1, (rng.integers(2, 5), 2)) * (width, height)
            layer = np.zeros(self.size, np.uint8)  # OpenCV smooths lines in this type only
            cv2.polylines(layer, [np.int32(points * 16)], False, 255, int(rng.integers(1, 3)), cv2.LINE_AA, 4)
            colour = _near(rng, self.canvas.reshape(-1, 3).mean(0), 0.5)
            self._blend((slice(None), slice(None)), layer / np.float32(255) * np.float32(rng.uniform(0.4, 0.9)), colour)

    def add_crowd(self) -> None:
        """Add a cluster of tiny overlapping shapes of one class, known as one region."""
        rng = self.rng
        label = int(rng.integers(len(CLASSES)))
        spread = rng.uniform(12, 24) * self.unit
        centre = rng.uniform(0.2, 0.8, 2) * self.size[::-1]
        background = self.canvas.reshape(-1, 3).mean(0)
        region = np.zeros(self.size, bool)
        for _ in range(rng.integers(18, 40)):
            outline = _outline(rng, label)
            radius = max(4.0, rng.uniform(5, 8) * self.unit)
            window, cover = _cover(_place(rng, outline, radius, centre + rng.normal(0, spread, 2)), self.size)
            if cover.size:
                colour = _class_colour(rng, label, background)
                self._blend(window, cover, _texture(rng, cover.shape, colour, _near(rng, colour, TEXTURE), self.unit))
                region[window] |= cover >= 0.5
        if region.sum() >= MIN_PIXELS:
            everything = (slice(None), slice(None))
            self._remember(label, everything, region, float(region.sum()), (*centre, 2 * spread), crowd=True)

    def add_objects(self, count: int) -> None:
        """Add ``count`` objects, fewer where there is no room; the large ones tend to be behind."""
        rng = self.rng
        shares = np.array([share for share, *_ in SIZES])
        wanted = []
        for _ in range(count):
            label = int(rng.integers(len(CLASSES)))
            outline = _outline(rng, label)
            _, low, high = SIZES[rng.choice(len(SIZES), p=shares / shares.sum())]
            side = math.exp(rng.uniform(math.log(low), math.log(high))) * self.unit
            reach = 0.5 if CLASSES[label] == "bar" else 0.4
            radius = min(max(side, 9.0) / math.sqrt(_area(outline)), reach * min(self.size))
            wanted.append((-math.log(radius) + rng.normal(0, 0.7), label, outline, radius))
        for _, label, outline, radius in sorted(wanted, key=lambda row: row[0]):
            for _ in range(15):
                centre = self._spot(radius)
                contours = _place(rng, outline, radius, centre)
                window, cover = _cover(contours, self.size)
                whole = _area(outline) * radius**2
                mask = cover >= 0.5
                if self._fits(window, mask, whole):
                    under = self.canvas[window][mask].mean(0)
                    colour = _class_colour(rng, label, under)
                    texture = _texture(rng, cover.shape, colour, _near(rng, colour, TEXTURE), self.unit)
                    self._blend(window, cover, texture)
                    self._remember(label, window, mask, whole, (*centre, radius))
                    break

    def develop(self) -> np.ndarray:
        """Return the picture as a camera would see it: lighting, blur and noise, uint8 [H, W, 3]."""
        rng = self.rng
        ys, xs = _grid(self.size)
        angle, strength = rng.uniform(0, 2 * np.pi), rng.uniform(0, 0.25)
        light = 1 + strength * ((xs / self.size[1] - 0.5) * np.cos(angle) + (ys / self.size[0] - 0.5) * np.sin(angle))
        image = self.canvas * light[..., None].astype(np.float32)
        if rng.random() < 0.4:
            image = cv2.GaussianBlur(image, (0, 0), rng.uniform(0.4, 0.9))
        image = image + rng.standard_normal(image.shape, np.float32) * np.float32(rng.uniform(0.005, 0.03))
        return np.rint(image.clip(0, 1) * 255).astype(np.uint8)

    def instances(self) -> list[Instance]:
        """Return what is annotated, from back to front."""
        return [
            Instance(label, self.owner == number, min(1.0, seen / whole), crowd)
            for number, (label, seen, whole, crowd) in enumerate(
                zip(self.labels, self.seen, self.whole, self.crowds), start=1
            )
        ]

    def _spot(self, radius: float) -> np.ndarray:
        """Return a centre (x, y): often next to an earlier object, so that it is partly covered, else anywhere."""
        rng = self.rng
        extent = np.array(self.size[::-1], float)
        margin = np.minimum(0.55 * radius, 0.4 * extent)
        if self.places and rng.random() < 0.2:
            x, y, other = self.places[rng.integers(len(self.places))]
            angle, reach = rng.uniform(0, 2 * np.pi), (radius + other) * rng.uniform(0.4, 0.85)
            spot = np.array([x + reach * np.cos(angle), y + reach * np.sin(angle)])
            return spot.clip(margin, extent - margin)
        return rng.uniform(margin, extent - margin)

    def _fits(self, window: tuple[slice, slice], mask: np.ndarray, whole: float) -> bool:
        """Tell whether the new shape, and every earlier one under it, would still be seen well enough."""
        if mask.sum() < max(MIN_PIXELS, 0.6 * whole):
            return False
        lost = np.bincount(self.owner[window][mask], minlength=len(self.seen) + 1)[1:]
        return all(
            take == 0 or seen - take >= max(MIN_PIXELS, MIN_VISIBLE * whole)
            for take, seen, whole in zip(lost, self.seen, self.whole)
        )

    def _remember(
        self,
        label: int,
        window: tuple[slice, slice],
        mask: np.ndarray,
        whole: float,
        place: tuple[float, float, float],
        crowd: bool = False,
    ) -> None:
        """Make the pixels of ``mask`` the newest shape's."""
        self.owner[window][mask] = len(self.labels) + 1
        self.labels.append(label)
        self.crowds.append(crowd)
        self.whole.append(whole)
        self.places.append(place)
        self.seen = np.bincount(self.owner.ravel(), minlength=len(self.labels) + 1)[1:].tolist()

    def _blend(self, window: tuple[slice, slice], cover: np.ndarray, colour: np.ndarray) -> None:
        """Lay ``colour`` ([h, w, 3] or [3]) over the window, [h, w] ``cover`` being its opacity."""
        under = self.canvas[window]
        under += cover[..., None] * (np.asarray(colour, np.float32) - under)


def _outline(rng: np.random.Generator, label: int) -> list[np.ndarray]:
    """Return the contours, each [n, 2], of a random shape of the class in the unit circle; a second one is a hole."""
    name = CLASSES[label]
    turn = np.linspace(0, 2 * np.pi, 72, endpoint=False)
    circle = np.stack([np.cos(turn), np.sin(turn)], 1)
    if name == "disc":
        return [circle * (1, rng.uniform(0.88, 1))]
    if name == "ring":
        squash = (1, rng.uniform(0.88, 1))
        return [circle * squash, circle[::-1] * squash * rng.uniform(0.5, 0.65)]
    if name == "square":
        corners = np.array([(1, 1), (-1, 1), (-1, -1), (1, -1)]) * (1, rng.uniform(0.8, 1))
        return [corners / np.sqrt(2)]
    if name == "triangle":
        angles = np.radians([90, 210, 330]) + rng.uniform(-0.15, 0.15, 3)
        return [np.stack([np.cos(angles), np.sin(angles)], 1)]
    if name == "star":
        angles = np.linspace(0, 2 * np.pi, 10, endpoint=False)
        radius = np.where(np.arange(10) % 2, rng.uniform(0.38, 0.48), 1)
        return [np.stack([np.cos(angles), np.sin(angles)], 1) * radius[:, None]]
    if name == "cross":
        w, e = (h := rng.uniform(0.24, 0.32)), math.sqrt(1 - h * h)
        quarter = [(e, -w), (e, w), (w, w)]
        turns = [(1, 0, 0, 1), (0, 1, -1, 0), (-1, 0, 0, -1), (0, -1, 1, 0)]
        return [np.array([(a * x - b * y, b * x + a * y) for a, b, *_ in turns for x, y in quarter])]
    if name == "bar":
        half = rng.uniform(0.1, 0.16)
        return [np.array([(1, half), (-1, half), (-1, -half), (1, -half)])]
    # crescent: the unit circle less a circle of radius q around (d, 0)
    q, d = rng.uniform(0.78, 0.88), rng.uniform(0.42, 0.55)
    x = (1 - q * q + d * d) / (2 * d)
    y = math.sqrt(1 - x * x)
    outer, inner = math.atan2(y, x), math.atan2(y, x - d)
    out = np.linspace(outer, 2 * np.pi - outer, 48)
    back = np.linspace(2 * np.pi - inner, inner, 48)[1:-1]
    return [
        np.concatenate([np.stack([np.cos(out), np.sin(out)], 1), np.stack([d + q * np.cos(back), q * np.sin(back)], 1)])
    ]


def _area(contours: list[np.ndarray]) -> float:
    """Return the area inside the first contour less that of the holes."""
    areas = [abs(np.sum(p[:, 0] * np.roll(p[:, 1], -1) - p[:, 1] * np.roll(p[:, 0], -1))) / 2 for p in contours]
    return float(2 * areas[0] - sum(areas))


def _place(rng: np.random.Generator, contours: list[np.ndarray], radius: float, centre: np.ndarray) -> list[np.ndarray]:
    """Rotate at random, scale to ``radius`` pixels and move to ``centre`` (x, y)."""
    angle = rng.uniform(0, 2 * np.pi)
    rotation = np.array([(np.cos(angle), np.sin(angle)), (-np.sin(angle), np.cos(angle))])
    return [points @ rotation * radius + centre for points in contours]


def _cover(contours: list[np.ndarray], size: tuple[int, int]) -> tuple[tuple[slice, slice], np.ndarray]:
    """Return the window of the image that the contours touch, and there the covered share of each pixel.

    The window is a pair of slices (rows, columns); the cover is float32 [h, w] in 0..1, empty if all is outside.
    """
    points = np.concatenate(contours)
    low = np.maximum(np.floor(points.min(0)).astype(int) - 1, 0)
    high = np.minimum(np.ceil(points.max(0)).astype(int) + 1, size[::-1])
    window = (slice(low[1], max(low[1], high[1])), slice(low[0], max(low[0], high[0])))
    width, height = np.maximum(high - low, 0).tolist()
    if not width or not height:
        return window, np.zeros((height, width), np.float32)
    fine = np.zeros((height * SUPERSAMPLE, width * SUPERSAMPLE), np.uint8)
    # OpenCV counts from pixel centres (hence the half) and takes the fraction as `shift` bits
    scaled = [np.rint(((p - low) * SUPERSAMPLE - 0.5) * 16).astype(np.int32) for p in contours]
    cv2.fillPoly(fine, scaled, 255, cv2.LINE_8, 4)
    return window, cv2.resize(fine, (width, height), interpolation=cv2.INTER_AREA).astype(np.float32) / 255


def _grid(size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the row and column numbers of every pixel as two float32 arrays that broadcast to [h, w]."""
    return np.arange(size[0], dtype=np.float32)[:, None], np.arange(size[1], dtype=np.float32)[None]


def _texture(
    rng: np.random.Generator, size: tuple[int, int], base: np.ndarray, other: np.ndarray, unit: float
) -> np.ndarray:
    """Return a random pattern of two colours, float32 [h, w, 3]; ``unit`` scales its period."""
    ys, xs = _grid(size)
    angle, period = rng.uniform(0, 2 * np.pi), rng.uniform(8, 32) * max(unit, 0.5)
    c, s = math.cos(angle) * 2 * math.pi / period, math.sin(angle) * 2 * math.pi / period
    u, v = xs * c + ys * s + rng.uniform(0, 6), ys * c - xs * s + rng.uniform(0, 6)
    kind = rng.choice(["flat", "ramp", "stripes", "checks", "spots", "clouds"])
    if kind == "flat":
        mix = np.zeros(size)
    elif kind == "ramp":
        mix = (u - u.min()) / max(float(np.ptp(u)), 1e-3)
    elif kind == "stripes":
        mix = np.sin(u) * 2 + 0.5
    elif kind == "checks":
        mix = np.sin(u) * np.sin(v) * 4 + 0.5
    elif kind == "spots":
        mix = (np.cos(u) + np.cos(v) - 0.7) * 2
    else:
        cells = [max(2, round(n / period) + 1) for n in size]
        mix = cv2.resize(rng.random(cells, np.float32), (size[1], size[0]), interpolation=cv2.INTER_CUBIC)
    mix = np.clip(mix, 0, 1).astype(np.float32)[..., None]
    base = np.asarray(base, np.float32)
    return base + mix * (np.asarray(other, np.float32) - base)


def _near(rng: np.random.Generator, colour: np.ndarray, reach: float) -> np.ndarray:
    """Return a colour at most ``reach`` away in each channel."""
    return np.clip(colour + rng.uniform(-reach, reach, 3), 0, 1)


def _colour(rng: np.random.Generator, hue: float, saturation: tuple[float, float]) -> np.ndarray:
    """Return an RGB colour in 0..1 of the hue (a share of the circle), with a random saturation and brightness."""
    return np.array(colorsys.hsv_to_rgb(hue % 1, rng.uniform(*saturation), rng.uniform(0.25, 0.95)))


def _class_colour(rng: np.random.Generator, label: int, under: np.ndarray) -> np.ndarray:
    """Return a colour around the hue of the class, told apart from what is under it (Euclidean distance 0.3).

    Hues of neighbouring classes overlap, so that colour helps and does not decide, as with things in photographs.
    """
    draws = [_colour(rng, (label + rng.normal(0, HUE_SPREAD)) / len(CLASSES), saturation=(0.4, 1.0)) for _ in range(12)]
    away = [np.linalg.norm(colour - under) for colour in draws]
    return next((colour for colour, distance in zip(draws, away) if distance >= 0.3), draws[int(np.argmax(away))])
