"""Files of one picture in every format, mode and orientation."""

import io

import cv2
import numpy as np
from PIL import Image

DRAWN = cv2.resize(np.random.default_rng(0).integers(0, 256, (6, 8, 4), np.uint8), (32, 24))  # [24, 32, 4]
DEEP = np.random.default_rng(0).integers(0, 1 << 16, (24, 32, 4), np.uint16)
FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF", "AVIF")
MODES = ("RGB", "RGBA", "L", "LA", "P", "1", "CMYK", "16 bits", "RGB in 16 bits", "RGBA in 16 bits")


def encoded(kind, mode, orientation=1):
    if "bits" in mode:
        channels = {"16 bits": DEEP[..., 0], "RGB in 16 bits": DEEP[..., :3], "RGBA in 16 bits": DEEP}[mode]
        return cv2.imencode(f".{kind.lower()}", channels)[1].tobytes() if kind in ("PNG", "TIFF") else None
    image, file, exif = Image.fromarray(DRAWN, "RGBA").convert(mode), io.BytesIO(), Image.Exif()
    exif[0x0112] = orientation
    try:
        image.save(file, kind, exif=exif)
    except (OSError, KeyError, ValueError):
        return None
    return file.getvalue()


FILES = {(kind, mode): encoded(kind, mode) for kind in FORMATS for mode in MODES if encoded(kind, mode)}


def turned(pixels, orientation):
    """Turn pixels by an EXIF orientation, as the standard defines the first row and the first column."""
    pixels = pixels.swapaxes(0, 1) if orientation >= 5 else pixels
    flips = {2: (1,), 3: (0, 1), 4: (0,), 6: (1,), 7: (0, 1), 8: (0,)}
    return np.flip(pixels, flips.get(orientation, ()))
