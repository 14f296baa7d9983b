"""Predictions drawn on images, and sheets of pictures; images and pictures are [H, W, 3] uint8 RGB."""

import colorsys
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

MIN_TEXT = 13  # pixels; smaller text cannot be read
MIN_LINES = 12  # least lines of a legend, even if the picture has room for fewer
TEXT_SHARE = 38  # side of a square picture / text height
OUTLINE_SHARE = 350  # side of a square picture / width of the outline of an object
MIDDLE = 400  # sum of a colour's three values above which text on it is dark
CONTOUR_SHARE = 600  # side of a square picture / width of the contour on each side of a border
LEAST = 0.3  # minimum score of a keypoint that is drawn
FAR = 1 << 14  # largest coordinate that OpenCV draws, in pixels
PAPER, INK, FAINT, MARK = (255, 255, 255), (30, 30, 30), (110, 110, 110), (0, 160, 90)


def drawable(names: Sequence[str]) -> list[str]:
    """Class names as they are drawn: ``#`` and the index if no font here has all characters of a name."""
    return [name if any(_has_glyphs(name, file) for file in _font_files()) else f"#{i}" for i, name in enumerate(names)]


def load_font(size: int, texts: Iterable[str] = ()) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow's font; matplotlib's for texts with characters that it lacks, such as all beyond ASCII."""
    text = "".join(texts)
    file = next((file for file in _font_files() if _has_glyphs(text, file)), "")
    return _open_font(file, size)


@cache
def _font_files() -> list[str]:
    spec = find_spec("matplotlib")
    return ["", *([f"{Path(spec.origin).parent}/mpl-data/fonts/ttf/DejaVuSans.ttf"] if spec and spec.origin else [])]


def _open_font(file: str, size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.truetype(file, size) if file else ImageFont.load_default(size)


@lru_cache(4096)
def _has_glyphs(text: str, file: str) -> bool:
    font = _open_font(file, MIN_TEXT)
    unknown = font.getmask("\U0010ffff")  # an empty box; no font has this character
    drawn = (font.getmask(character) for character in set(text) if not character.isspace())
    return all((mask.size, bytes(mask)) != (unknown.size, bytes(unknown)) for mask in drawn)


def distinct_colours(count: int) -> np.ndarray:
    """Fixed colours for classes without a palette, [count, 3] uint8 RGB: golden-ratio hues in three lightnesses."""
    lightness = (0.55, 0.38, 0.72)
    colours = [colorsys.hls_to_rgb(i * 0.618034 % 1, lightness[i % 3], 0.75) for i in range(count)]
    return np.round(255 * np.array(colours).reshape(count, 3)).astype(np.uint8)


def shades(colours: np.ndarray, labels: Sequence[int]) -> np.ndarray:
    """Give the segments of a class different shades: the first keeps its colour, the next get lighter and darker.

    `colours` [segments, 3] uint8 RGB and `labels` are the class colour and class of each segment; returns colours.
    """
    steps = ((0, 0), (255, 0.35), (0, 0.35), (255, 0.6), (0, 0.6))  # towards white or black, and how far
    seen: Counter[int] = Counter()
    shaded = []
    for colour, label in zip(colours, labels):
        end, share = steps[seen[label] % len(steps)]
        seen[label] += 1
        shaded.append((1 - share) * colour + share * end)
    return np.round(shaded).astype(np.uint8).reshape(-1, 3)


def class_shares(labels: np.ndarray, num_classes: int) -> np.ndarray:
    """The share of each class in the pixels: labels [H, W], integers from 0 to num_classes - 1 -> [num_classes]."""
    return np.bincount(labels.ravel(), minlength=num_classes) / labels.size


def overlay(image: np.ndarray, labels: np.ndarray, palette: Sequence | np.ndarray, alpha: float = 0.5) -> np.ndarray:
    """Blend class colours over an image, opaque along borders between classes.

    `labels` [H, W] are indices of `palette` [classes, 3]. `alpha` is the weight of the colours, 0 (only contours) to 1.
    """
    colours = np.asarray(palette, np.uint8)[labels]  # [H, W, 3]
    mixed = np.round((1 - alpha) * image + alpha * colours).astype(np.uint8)
    return np.where(_borders(labels)[..., None], colours, mixed)


def _borders(labels: np.ndarray) -> np.ndarray:
    width = max(1, round(math.sqrt(labels.size) / CONTOUR_SHARE))
    kernel = np.ones((2 * width + 1, 2 * width + 1), np.uint8)
    values = labels.astype(np.uint16)  # OpenCV takes no int64
    return cv2.dilate(values, kernel) != cv2.erode(values, kernel)


def instances(
    image: np.ndarray,
    boxes: Sequence[Sequence[float]],
    texts: Sequence[str],
    colours: Sequence | np.ndarray,
    masks: Iterable[np.ndarray | None],
    alpha: float = 0.45,
    outlines: np.ndarray | None = None,
) -> np.ndarray:
    """Draw objects with their boxes, masks and texts; the last lies on top.

    Args:
        boxes: x, y, width and height of each, in pixels.
        texts: Text of each, at the upper left corner of its box.
        masks: Mask of each, [H, W] bool or None. They are taken one by one, so they need not be in memory together.
        alpha: Weight of the colour in a mask, 0 to 1.
        outlines: Corners of oriented boxes, [N, 4, 2], drawn in place of the boxes.
    """
    picture, side = image.copy(), math.sqrt(image.shape[0] * image.shape[1])
    line, text = max(1, round(side / OUTLINE_SHARE)), max(MIN_TEXT, round(side / (1.5 * TEXT_SHARE)))
    colours = [tuple(map(int, colour)) for colour in colours]
    for mask, colour in zip(masks, colours):
        if mask is not None and mask.any():
            _tint(picture, mask.view(np.uint8), colour, alpha, line)
    page = Image.fromarray(picture)
    pen, font = ImageDraw.Draw(page), load_font(text, texts)
    for i, ((x, y, width, height), colour) in enumerate(zip(boxes, colours)):
        if outlines is not None:
            pen.polygon([*map(tuple, outlines[i].tolist())], outline=colour, width=line)
            continue
        end = max(x, x + width - 1), max(y, y + height - 1)
        pen.rectangle((x, y, *end), outline=colour, width=line)
    for (x, y, *_), words, colour in zip(boxes, texts, colours):
        words = " ".join(words.split())
        *_, right, bottom = pen.textbbox((0, 0), words, font, anchor="lt")
        x = max(0, min(x, page.width - right - text // 2))
        y = max(0, y - bottom - text // 2)  # above the box, or at the upper edge of the image
        pen.rectangle((x, y, x + right + text // 2, y + bottom + text // 2), fill=colour)
        pen.text((x + text // 4, y + text // 4), words, PAPER if sum(colour) < MIDDLE else INK, font, anchor="lt")
    return np.asarray(page)


def skeletons(
    image: np.ndarray, keypoints: np.ndarray, pairs: Sequence[tuple[int, int]], colours: Sequence | np.ndarray
) -> np.ndarray:
    """Draw the keypoints of objects, [N, K, 3] (x, y in pixels, score), and lines between pairs of them.

    Keypoints with a score below `LEAST` are left out.
    """
    picture = image.copy()
    line = max(1, round(math.sqrt(image.shape[0] * image.shape[1]) / OUTLINE_SHARE))
    for points, colour in zip(keypoints, np.asarray(colours).tolist()):
        shown = points[:, 2] >= LEAST
        places = [tuple(one) for one in np.rint(points[:, :2]).clip(-FAR, FAR).astype(int).tolist()]
        for a, b in pairs:
            if shown[a] and shown[b]:
                cv2.line(picture, places[a], places[b], colour, line, cv2.LINE_AA)
        for place in (place for place, is_shown in zip(places, shown) if is_shown):
            cv2.circle(picture, place, 2 * line, PAPER, cv2.FILLED, cv2.LINE_AA)
            cv2.circle(picture, place, 2 * line, colour, line, cv2.LINE_AA)
    return picture


def _tint(picture: np.ndarray, mask: np.ndarray, colour: tuple[int, ...], alpha: float, line: int) -> None:
    """Mix a colour into the pixels [H, W, 3] of a mask [H, W] of 0 and 1, in place; its edge is opaque."""
    x, y, width, height = cv2.boundingRect(mask)
    rows = slice(max(0, y - line), y + height + line)  # with a margin for the outline
    columns = slice(max(0, x - line), x + width + line)
    part, inside = picture[rows, columns], mask[rows, columns]
    kernel = np.ones((2 * line + 1, 2 * line + 1), np.uint8)
    edge = inside > cv2.erode(inside, kernel, borderType=cv2.BORDER_CONSTANT, borderValue=1)
    for channel, value in enumerate(colour):
        mixed = np.round((1 - alpha) * np.arange(256) + alpha * value).astype(np.uint8)  # of every value
        plane = part[..., channel]
        plane[inside > 0] = mixed[plane[inside > 0]]
        plane[edge] = value


def with_legend(
    picture: np.ndarray, names: Sequence[str], colours: Sequence | np.ndarray, shares: Sequence[float] | np.ndarray
) -> np.ndarray:
    """Add a legend to the right: colour, name and share of the classes that are present, the largest first.

    The legend is as wide as its longest line. If there are more classes than lines, the last line is the sum of the
    smallest. Classes of share 0 are left out; if no class is left, the picture stays as it is.
    """
    present = [i for i in np.argsort(-np.asarray(shares), kind="stable") if shares[i] > 0]
    if not present:
        return picture
    height, width = picture.shape[:2]
    text = max(MIN_TEXT, round(math.sqrt(height * width) / TEXT_SHARE))  # text height; all other lengths depend on it
    line, margin, swatch = round(1.6 * text), text, round(1.2 * text)
    num_lines = max(MIN_LINES, (height - 2 * margin) // line)
    shown = present if len(present) <= num_lines else present[: num_lines - 1]
    rest = present[len(shown) :]
    rows: list = [(" ".join(str(names[i]).split()), tuple(map(int, colours[i])), _percent(shares[i])) for i in shown]
    if rest:
        rows.append((f"and {len(rest)} more", None, _percent(sum(shares[i] for i in rest))))

    font = load_font(text, (name for name, _, _ in rows))
    name_width = math.ceil(max(font.getlength(name) for name, _, _ in rows))
    share_width = math.ceil(max(font.getlength(share) for _, _, share in rows))
    x_name = width + margin + swatch + text // 2
    x_end = x_name + name_width + text + share_width  # right end of the shares
    page = Image.new("RGB", (x_end + margin, max(height, 2 * margin + line * len(rows))), PAPER)
    page.paste(Image.fromarray(picture), (0, 0))
    draw = ImageDraw.Draw(page)
    for i, (name, colour, share) in enumerate(rows):
        top, middle = margin + i * line, margin + i * line + line // 2
        if colour is not None:
            corner = (width + margin, top + (line - swatch) // 2)
            draw.rectangle((*corner, corner[0] + swatch, corner[1] + swatch), fill=colour, outline=FAINT)
        draw.text((x_name, middle), name, fill=INK if colour is not None else FAINT, font=font, anchor="lm")
        draw.text((x_end, middle), share, fill=FAINT, font=font, anchor="rm")
    return np.asarray(page)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.001 else "< 0.1 %"
