"""Pages of extensions: one HTML file with its pictures inside, which opens without a server."""

import base64
import io
from html import escape
from pathlib import Path
from string import Template

import numpy as np
from PIL import Image

from vitdense.files import atomic_write, read_text

LARGEST = 680  # longer side of a picture in pixels


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
