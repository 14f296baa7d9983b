"""Image files of a data set: which can be read, their modes and sizes."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import mmcv
import numpy as np
from PIL import ExifTags, Image

from vitdense.mm.errors import join_some

FILES_READ = 200  # per data set, evenly spaced: all of COCO or ADE20K would take minutes
DEEP_MODES = ("I", "I;16", "I;16B", "I;16L")  # Pillow's modes of more than 8 bits

Item = TypeVar("Item")


class ImageFile(NamedTuple):
    """One file.

    Attributes:
        path: As given.
        mode: Pillow's: ``RGB``, ``L``, ``I;16``, ...; empty if the file cannot be read.
        stored: Width and height in pixels, as stored.
        loaded: Width and height as mm's loader gives them by default: turned by the EXIF orientation.
        error: Why it cannot be read; empty if it can.
    """

    path: str
    mode: str = ""
    stored: tuple[int, int] = (0, 0)
    loaded: tuple[int, int] = (0, 0)
    error: str = ""


def by(size: tuple[int, int]) -> str:
    """Width and height as in messages: 640x480."""
    return f"{size[0]}x{size[1]}"


def keeps_orientation(dataset: Mapping) -> bool:
    """Whether images are loaded as stored, not turned by their EXIF orientation."""
    return any("ignore_orientation" in step.get("color_type", "") for step in dataset.get("pipeline", ()))


def header_size(path: str, stored: bool) -> tuple[int, int] | None:
    """Width and height of an image, as stored or as loaded, from its first bytes; None: it cannot be read."""
    try:
        with Image.open(path) as image:
            turned = image.getexif().get(ExifTags.Base.Orientation, 1) >= 5
            return image.size[::-1] if turned and not stored else image.size
    except (OSError, Image.DecompressionBombError):
        return None


def evenly_spaced(items: Sequence[Item], number: int | None) -> list[Item]:
    """At most `number` of the items, the first and the last among them; None: all."""
    if number is None or number >= len(items):
        return list(items)
    return [items[i] for i in np.linspace(0, len(items) - 1, number).astype(int)]


def read_image_file(path: str) -> ImageFile:
    """Decode an image file by Pillow, which finds truncated ones, and by mm's loader."""
    try:
        with Image.open(path) as image:
            image.load()
        height, width = mmcv.imread(path).shape[:2]
        return ImageFile(path, image.mode, image.size, (width, height))
    except Exception as error:  # decoders have no error in common
        return ImageFile(path, error=f"{type(error).__name__}: {error}")


def describe_images(files: Iterable[ImageFile]) -> str:
    """Modes and sizes of the files that can be read, in one line. Sizes are width x height, as loaded."""
    readable = [file for file in files if not file.error]
    if not readable:
        return "none can be read"
    modes = ", ".join(f"{mode} {count}" for mode, count in Counter(file.mode for file in readable).most_common())
    small, large = (
        limit((file.loaded for file in readable), key=lambda size: size[0] * size[1]) for limit in (min, max)
    )
    median = [round(statistics.median(file.loaded[axis] for file in readable)) for axis in (0, 1)]
    return f"{modes}; {small[0]}x{small[1]} to {large[0]}x{large[1]}, median {median[0]}x{median[1]}"


def image_faults(files: Sequence[ImageFile]) -> tuple[list[str], list[str]]:
    """What is wrong with image files: errors and warnings, a line each."""
    errors, warnings = [], []
    if unreadable := [f"{file.path} ({file.error})" for file in files if file.error]:
        errors.append(f"{len(unreadable)} image files cannot be read: {join_some(unreadable)}; repair or remove them")
    if deep := [file.path for file in files if file.mode in DEEP_MODES]:
        warnings.append(
            f"{len(deep)} image files have more than 8 bits per channel, of which mm's loader keeps the upper 8: "
            f"{join_some(deep)}; convert them to 8 bits if their values do not fill the range"
        )
    return errors, warnings
