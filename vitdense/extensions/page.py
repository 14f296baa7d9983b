"""Pages of extensions: one HTML file with its pictures inside, which opens without a server."""

import base64
import io
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

import cv2
import numpy as np
from PIL import Image

from vitdense.files import atomic_write, read_text
from vitdense.mm.data.coco import TOLERANCE

LARGEST = 680  # longer side of a picture in pixels
NEAR = 3  # the region around an object is at least this many times smaller than the image
GREY = 128  # colour beyond the edges of an image

Box = Sequence[float]  # x, y, width, height in pixels


def write_page(path: Path, title: str, about: str, verdict: str, body: str) -> None:
    """Write a page; `title` and `about` are text, `verdict` and `body` are HTML."""
    template = Template(read_text(Path(__file__).with_name("page.html")))
    page = template.substitute(title=escape(title), about=escape(about), verdict=verdict, body=body)
    with atomic_write(path) as scratch:
        scratch.write_bytes(page.encode("utf-8", "backslashreplace"))  # for file names that are not UTF-8


def figure(caption: str, pixels: np.ndarray) -> str:
    """A picture [H, W, 3] uint8 RGB with a caption, as HTML."""
    buffer, picture = io.BytesIO(), Image.fromarray(pixels)
    picture.thumbnail((LARGEST, LARGEST))
    picture.save(buffer, "JPEG", quality=80)
    data, text = base64.b64encode(buffer.getvalue()).decode(), escape(caption)
    image = f'<img src="data:image/jpeg;base64,{data}" width="{picture.width}" height="{picture.height}"'
    return f'<figure>{image} alt="{text}"><figcaption>{text}</figcaption></figure>'


def bar(value: float, most: float) -> str:
    """A bar as long as the share of a value, as HTML."""
    return f'<span class="bar" style="width:{100 * value / most:.1f}%"></span>' if value > 0 else ""


def region(size: Sequence[int], boxes: Sequence[Box]) -> Box:
    """The region to show for boxes: their surroundings, with the whole image if they are outside of it.

    Args:
        size: Width and height of the image.
        boxes: Boxes, which may exceed the image; at most one width or height beyond it is shown.
    """
    start, length = [], []
    for axis, side in enumerate(size):
        first = min((box[axis] for box in boxes), default=0)
        last = max((box[axis] + box[axis + 2] for box in boxes), default=side)
        if first < -TOLERANCE or last > side + TOLERANCE:
            first, last = max(min(first, 0), -side), min(max(last, side), 2 * side)
        else:
            shown = min(max(1.5 * (last - first), side / NEAR), side)
            first = min(max((first + last - shown) / 2, 0), side - shown)
            last = first + shown
        start.append(first)
        length.append(max(last - first, 1))
    return *start, *length


def part_of(plane: np.ndarray, shown: Box, scale: float, beyond: int) -> np.ndarray:
    """A region of an image [H, W, ...], scaled; `beyond` is the value outside of the image."""
    left, top, width, height = shown
    first = [max(0, int(x)) for x in (left, top)]
    cut = plane[first[1] : int(np.ceil(top + height)), first[0] : int(np.ceil(left + width))]
    size = [max(1, round(side * scale)) for side in cut.shape[1::-1]]
    small = cv2.resize(cut, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_NEAREST)
    view = np.full((max(1, round(height * scale)), max(1, round(width * scale)), *plane.shape[2:]), beyond, np.uint8)
    x, y = (max(0, round((a - b) * scale)) for a, b in zip(first, (left, top)))
    inside = view[y : y + size[1], x : x + size[0]]
    inside[:] = small[: inside.shape[0], : inside.shape[1]]
    return view
