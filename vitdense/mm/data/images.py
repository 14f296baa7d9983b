"""Images: the reader of pixels from files, bytes, arrays and others; and checks of the files of a data set."""

import io
import math
import os
import statistics
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import cv2
import mmcv
import numpy as np
import torch
from huggingface_hub.utils import tqdm
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from vitdense.errors import OptionError
from vitdense.mm.data.faults import Fault, Faults, Size
from vitdense.mm.errors import ConfigError
from vitdense.seams import ask

THREADS = 8  # most threads that decode images
FILES_READ = 200  # per data set, evenly spaced: all of COCO or ADE20K would take minutes
SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # as in torchvision
OF_16_BITS = ("I;16", "I;16B", "I;16L")  # modes of Pillow
OF_8_BITS = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX")  # modes that all decoders read alike
# First and last bytes of complete files.
MARKERS = ((b"\xff\xd8", b"\xff\xd9"), (b"\x89PNG\r\n\x1a\n", b"\0\0\0\0IEND\xaeB`\x82"))

Item = TypeVar("Item")
Images = str | Path | bytes | np.ndarray | Image.Image | Tensor


class ImageFile(NamedTuple):
    """One file."""

    path: str
    mode: str = ""  # Pillow's
    stored: tuple[int, int] = (0, 0)  # width and height in pixels
    loaded: tuple[int, int] = (0, 0)  # the same after the EXIF orientation, as from mm's loader
    error: str = ""  # why the file cannot be read


def by(size: Sequence[int]) -> str:
    """Width and height as text: 640x480."""
    return f"{size[0]}x{size[1]}"


def keeps_orientation(dataset: Mapping) -> bool:
    """Whether images are loaded as stored, not turned by their EXIF orientation."""
    return any("ignore_orientation" in step.get("color_type", "") for step in dataset.get("pipeline", ()))


@contextmanager
def header(file: str | Path | bytes) -> Iterator[Image.Image]:
    """Open an image file, by path or content, in Pillow without decoding its pixels.

    Unlike `Image.open` it accepts more than 179 million pixels, which OpenCV reads. An OSError if it is no image.
    """
    Image.preinit()
    Image.init()
    with io.BytesIO(file) if isinstance(file, bytes) else open(file, "rb") as stream:
        start, found = stream.read(16), None
        for factory, accept in (Image.OPEN[name] for name in Image.ID):
            with suppress(SyntaxError, IndexError, TypeError, struct.error):  # as in `Image.open`
                is_one = accept(start) if accept else True
                if is_one and not isinstance(is_one, str):  # a text says which library is missing
                    stream.seek(0)
                    found = factory(stream, "")
                    break
        if found is None:
            raise UnidentifiedImageError("cannot identify the format of the image")
        yield found


def header_size(path: str, stored: bool) -> tuple[int, int] | None:
    """Width and height of an image, as stored or as loaded, from its first bytes; None if it cannot be read."""
    try:
        with header(path) as image:
            return image.size[::-1] if _orientation(image) >= 5 and not stored else image.size
    except OSError:
        return ask("images", "size", path)


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 to 8. It is 1 for TIFF, which Pillow and OpenCV turn themselves."""
    try:
        value = 1 if image.format == "TIFF" else image.getexif().get(ExifTags.Base.Orientation, 1)
    except SyntaxError:  # damaged EXIF, which OpenCV ignores
        return 1
    return value if value in range(1, 9) else 1


def decode(content: bytes, color_type: str = "color", backend: str = "cv2") -> np.ndarray:
    """The pixels of an image file, by the arguments of mmcv's loader: BGR ``[H, W, 3]`` uint8.

    OpenCV before 5 ignores the EXIF orientation of WebP and AVIF; Pillow applies it, so that all formats have the size
    of `header_size` and appear as people see and annotate them. What is no image, or truncated (OpenCV before 4.12
    would fill it with grey), is a ValueError or a cv2.error.
    """
    if not content:
        raise OptionError("the file is empty")
    flag, orientation = color_type, 1
    is_other = content[8:12] == b"WEBP" or content[4:12] in (b"ftypavif", b"ftypavis")
    if is_other and backend == "cv2" and color_type in ("color", "grayscale"):
        with header(content) as image:
            flag, orientation = f"{color_type}_ignore_orientation", _orientation(image)
    pixels = mmcv.imfrombytes(content, flag=flag, backend=backend)
    if pixels is None:
        raise OptionError(f"{backend} cannot decode it: it is damaged, no image, or has over 4 bands")
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)  # [W, H, 3]
    pixels = pixels[:, ::-1] if orientation in (2, 3, 6, 7) else pixels
    pixels = pixels[::-1] if orientation in (3, 4, 7, 8) else pixels
    return np.ascontiguousarray(pixels)


def _of_pillow(image: Image.Image, stored: bool) -> np.ndarray:
    """Pixels as in the file, [H, W, 3] uint8 RGB."""
    image = image if stored else ImageOps.exif_transpose(image)
    if image.mode in OF_16_BITS:
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))  # as OpenCV
    if image.mode not in OF_8_BITS:
        raise OptionError(f"got mode {image.mode} of Pillow, expected one of {', '.join(OF_8_BITS + OF_16_BITS)}")
    return np.array(image.convert("RGB"))


def read_pixels(image: Images, color_type: str = "color", backend: str = "cv2") -> np.ndarray:
    """The pixels of an image from any kind of source, [H, W, 3] uint8 RGB.

    The upper 8 of 16 bits are taken, alpha is dropped, and the EXIF orientation of files and Pillow images is applied.

    Args:
        image: See `vitdense.mm.predictor.Predictor`.
        color_type, backend: See `decode`, for files; ``color_ignore_orientation`` also for Pillow's images.

    Raises:
        ConfigError: A file does not exist or cannot be read; or the image has no pixel, or is not one of `Images`.
    """
    name = f"image {image}" if isinstance(image, (str, Path)) else "image"
    if isinstance(image, (str, Path)) and not os.path.isfile(image):  # a pipe would wait for ever
        raise ConfigError(f"{name} does not exist, or is no file")
    try:
        if isinstance(image, (str, Path)):
            image = Path(image).read_bytes()
        if isinstance(image, bytes):
            image = cv2.cvtColor(decode(image, color_type, backend), cv2.COLOR_BGR2RGB)
        if isinstance(image, Image.Image):
            image = _of_pillow(image, stored="ignore_orientation" in color_type)
    except Exception as error:  # decoders have no error in common
        kind = "" if isinstance(error, OptionError) else f"{type(error).__name__}: "
        raise ConfigError(f"{name} cannot be read ({kind}{str(error).strip()})") from error
    if isinstance(image, Tensor) and image.dtype == torch.uint8 and image.ndim == 3:
        image = image.cpu().permute(1, 2, 0).contiguous().numpy()
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        is_array = isinstance(image, (np.ndarray, Tensor))
        got = f"{image.dtype} {list(image.shape)}" if is_array else type(image).__name__
        expected = "a path, bytes of a file, an image of Pillow, or uint8 RGB: array [H, W, 3] or tensor [3, H, W]"
        raise ConfigError(f"image: got {got}, expected {expected}")
    if not image.size:
        raise ConfigError(f"{name}: got {by(image.shape[1::-1])} pixels, expected at least one")
    return image


def picture_of(path: str, color_type: str = "color") -> np.ndarray:
    """The pixels of a file for a picture, as from `read_pixels`; of other bands as an extension shows them."""
    shown = ask("images", "picture", path)
    return read_pixels(path, color_type) if shown is None else shown


def run_steps(steps: Callable[[dict], Any], pixels: np.ndarray, path: str | Path = "") -> Any:
    """Run the steps of a test pipeline after the loader on pixels ``[H, W, 3]`` BGR of the file `path`.

    A step that fails, such as a resize of an image one pixel high to no pixel, is a ConfigError.
    """
    size = pixels.shape[:2]
    try:
        return steps({"img": pixels, "img_shape": size, "ori_shape": size, "img_path": str(path), "img_id": 0})
    except Exception as error:  # from OpenCV, mm or a user's own steps
        image, reason = f"image {path}".strip(), f"{type(error).__name__}: {' '.join(str(error).split())}"
        hint = "keep_ratio=True of Resize leaves no pixel of a side that is far shorter than the other"
        what = f"{image} of {by(size[::-1])} pixels: a step of the test pipeline fails ({reason}); {hint}"
        raise ConfigError(what) from error


def evenly_spaced(items: Sequence[Item], number: int | None) -> list[Item]:
    """At most `number` of the items, including the first and the last; None for all."""
    if number is None or number >= len(items):
        return list(items)
    return [items[i] for i in np.linspace(0, len(items) - 1, number).astype(int)]


def read_image_file(path: str, whole: bool = True) -> ImageFile:
    """Check an image file: decode it if `whole`; else read its header, and decode it if its end marker is missing."""
    try:
        content = Path(path).read_bytes() if whole or _may_be_cut(path) else None
        if content is not None:
            decode(content)
        with header(path) as image:
            stored = image.size
            return ImageFile(path, image.mode, stored, stored[::-1] if _orientation(image) >= 5 else stored)
    except Exception as error:  # decoders have no error in common
        return ImageFile(path, error=f"{type(error).__name__}: {error}")


def _may_be_cut(path: str) -> bool:
    with Path(path).open("rb") as file:
        begin = file.read(8)
        file.seek(-min(12, file.seek(0, os.SEEK_END)), os.SEEK_END)
        end = file.read()
    return any(begin.startswith(start) and not end.endswith(stop) for start, stop in MARKERS)


def in_threads(function: Callable[[Item], Any], items: Sequence[Item], words: str) -> list:
    """Map a function over items in threads, in order, with a progress bar on a terminal."""
    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
        return list(tqdm(pool.map(function, items), words, len(items), disable=None))


def examine_images(
    sizes: Mapping[str, Size | None], number: int | None, stored: bool, whole: bool = True, read: Callable | None = None
) -> tuple[list[ImageFile], list[Fault]]:
    """Look for image files and read some: the readable files, and faults.

    Args:
        sizes: Path -> annotated width and height, or None.
        number: Files to read, evenly spaced; None for all.
        stored: Whether images are loaded as stored, not turned by their EXIF orientation.
        whole: See `read_image_file`.
        read: A function in its place.
    """
    absent = {path for path in sizes if not os.path.isfile(path)}
    fix = "a backslash separates folders on Windows alone: write /" if any("\\" in path for path in absent) else ""
    chosen, faults = evenly_spaced([path for path in sizes if path not in absent], number), Faults()
    found = in_threads(partial(read or read_image_file, whole=whole), chosen, "images")
    faults.add("image files do not exist", *sorted(absent), fix=fix, total=len(sizes))
    for file in found:
        annotated = sizes[file.path]
        if file.error:
            faults.add("image files cannot be read; repair or remove them", f"{file.path} ({file.error})")
            continue
        if file.mode in ("I", *OF_16_BITS):
            what = "image files have more than 8 bits per channel, of which mm's loader keeps the upper 8"
            fix = "convert them to 8 bits if their values do not fill the range"
            faults.add(what, file.path, grave=False, fix=fix)
        if annotated is None or annotated == (file.stored if stored else file.loaded):
            continue
        # mmdet makes masks of the loaded size, and drops boxes outside of the annotated size.
        what, fix = "images have another size than annotated", ""
        if annotated == file.stored:
            what = "images are turned by mm's loader by their EXIF orientation, but annotated as they are stored"
            option = "color_type='color_ignore_orientation' in LoadImageFromFile of every pipeline"
            fix = f"set {option}, or turn annotations"
        faults.add(what, f"{file.path} ({by(file.loaded)}, annotated as {by(annotated)})", fix=fix)
    return [file for file in found if not file.error], list(faults)


def describe_images(files: Iterable[ImageFile]) -> str:
    """Modes and sizes of readable files in one line. Sizes are width x height, as loaded."""
    readable = [file for file in files if not file.error]
    if not readable:
        return "none can be read"
    modes = ", ".join(f"{mode} {count}" for mode, count in Counter(file.mode for file in readable).most_common())
    sizes = sorted((file.loaded for file in readable), key=math.prod)
    median = [round(statistics.median(sides)) for sides in zip(*sizes)]
    return f"{modes}; {by(sizes[0])} to {by(sizes[-1])}, median {by(median)}"
