"""Measures drawn on images; images and pictures are [H, W, 3] uint8 RGB."""

import math
from collections.abc import Sequence

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vitdense.results.draw import FAINT, INK, MARK, PAPER

DIMMED = 0.8  # brightness of the image below a heat map


def heat(image: np.ndarray, values: np.ndarray, stride: tuple[float, float]) -> np.ndarray:
    """Colour an image by a map of values [h, w] from 0: at 0 the image shows, grey and dimmed; the largest is yellow.

    A cell has `stride` pixels (height, width), the first at the top left; cells outside of the image are cut off.
    """
    scaled = np.asarray(values, np.float32) / max(float(np.max(values)), 1e-30)
    levels = np.arange(256, dtype=np.uint8)[:, None]
    table = cv2.cvtColor(cv2.applyColorMap(levels, cv2.COLORMAP_INFERNO), cv2.COLOR_BGR2RGB)  # [256, 1, 3]
    colours = _enlarge(table[np.round(255 * scaled).astype(np.uint8), 0], image, stride)  # [H, W, 3]
    weight = _enlarge(np.sqrt(scaled)[..., None], image, stride)  # [H, W, 1]
    grey = DIMMED * image.mean(-1, keepdims=True)
    return np.round((1 - weight) * grey + weight * colours).astype(np.uint8)


def cells(image: np.ndarray, colours: np.ndarray, stride: tuple[float, float]) -> np.ndarray:
    """Enlarge a map of colours, [h, w, 3] from 0 to 1, to the size of an image [H, W, 3]; see `heat`."""
    return _enlarge(np.round(255 * np.asarray(colours)).astype(np.uint8), image, stride)


def _enlarge(colours: np.ndarray, image: np.ndarray, stride: tuple[float, float]) -> np.ndarray:
    (h, w), (height, width) = colours.shape[:2], image.shape[:2]
    rows, columns = (
        np.minimum(np.arange(n) / s, m - 1).astype(int) for n, s, m in zip((height, width), stride, (h, w))
    )
    return colours[rows[:, None], columns]  # [H, W, 3]


def cross(image: np.ndarray, at: tuple[int, int]) -> np.ndarray:
    """Mark a pixel (row, column) of an image [H, W, 3]."""
    page = Image.fromarray(image)
    draw, size = ImageDraw.Draw(page), max(4, round(math.sqrt(image[..., 0].size) / 40))
    for colour, width in ((PAPER, 5), (MARK, 3)):
        for dy, dx in ((0, size), (size, 0)):
            draw.line((at[1] - dx, at[0] - dy, at[1] + dx, at[0] + dy), fill=colour, width=width)
    return np.asarray(page)


def contact_sheet(rows: Sequence[tuple[str, Sequence[tuple[str, np.ndarray]]]], width: int = 240) -> np.ndarray:
    """Draw rows of pictures, each row (title, [(caption, picture), ...]); pictures become `width` pixels wide."""
    text, gap = 13, 10
    font, title_font = ImageFont.load_default(text), ImageFont.load_default(text + 4)
    total = gap + max(len(pictures) for _, pictures in rows) * (width + gap)
    heights = [max(max(1, round(x.shape[0] * width / x.shape[1])) for _, x in pictures) for _, pictures in rows]
    title, caption = 2 * text + gap, 2 * text
    page = Image.new("RGB", (total, gap + sum(title + h + caption for h in heights)), PAPER)
    draw, top = ImageDraw.Draw(page), gap
    for (name, pictures), height in zip(rows, heights):
        draw.text((gap, top + text), name, fill=INK, font=title_font, anchor="lm")
        top += title
        for i, (below, picture) in enumerate(pictures):
            size = (width, max(1, round(picture.shape[0] * width / picture.shape[1])))
            is_small = picture.shape[1] < width
            resized = Image.fromarray(picture).resize(
                size, Image.Resampling.NEAREST if is_small else Image.Resampling.LANCZOS
            )
            left = gap + i * (width + gap)
            page.paste(resized, (left, top))
            draw.text((left, top + height + text), below, fill=FAINT, font=font, anchor="lm")
        top += height + caption
    return np.asarray(page)
