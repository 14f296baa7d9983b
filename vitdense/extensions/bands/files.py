"""Files of bands: TIFF by tifffile, ``.npy`` by NumPy. Pixels are as in the file, not scaled."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitdense.errors import OptionError
from vitdense.mm.errors import ConfigError

TIFF = (".tif", ".tiff")
ALPHA = (1, 2)  # of TIFF's tag ExtraSamples


class About(NamedTuple):
    """What the start of a file says."""

    size: tuple[int, int]  # width and height
    bands: int
    dtype: np.dtype
    has_alpha: bool = False  # it calls a band alpha


def about(path: str | Path) -> About:
    """Look at a file without reading its pixels. For errors see `read`."""
    return _open(path, "about")


def read(path: str | Path) -> np.ndarray:
    """The pixels of a file, ``[H, W, bands]`` in its own data type. Bands of a TIFF are samples of pixels, or pages.

    Raises:
        ConfigError: It is no image ``[H, W]`` or ``[H, W, bands]`` of numbers, or is cut, or is compressed as
            tifffile alone cannot read.
    """
    return np.array(_open(path, "read"))


def window(path: str | Path) -> np.ndarray:
    """As `read`, but pixels are read where they are used; except of a TIFF that is compressed or in tiles."""
    return _open(path, "window")


def _open(path: str | Path, use: str) -> About | np.ndarray:
    try:
        if Path(path).suffix.lower() in TIFF:
            return _tiff(path, use)
        pixels = with_bands(np.load(path, mmap_mode="r", allow_pickle=False))
        return About(pixels.shape[1::-1], pixels.shape[2], pixels.dtype) if use == "about" else pixels
    except Exception as error:  # readers have no error in common
        kind = "" if isinstance(error, OptionError) else f"{type(error).__name__}: "
        raise ConfigError(f"image {path} cannot be read ({kind}{error})") from error


def with_bands(pixels: np.ndarray) -> np.ndarray:
    """``[H, W]`` or ``[H, W, bands]`` as ``[H, W, bands]``; else an OptionError."""
    if pixels.ndim not in (2, 3) or not pixels.size or pixels.dtype.kind not in "uif":
        raise OptionError(f"got {pixels.dtype} {list(pixels.shape)}, expected numbers, [H, W] or [H, W, bands]")
    return pixels.reshape(*pixels.shape[:2], -1)


def _tiff(path: str | Path, use: str) -> About | np.ndarray:
    try:
        import tifffile
    except ModuleNotFoundError as error:
        raise OptionError("it needs tifffile: pip install 'vitdense[bands]'") from error
    with tifffile.TiffFile(path) as tiff:
        series, end = tiff.series[0], tiff.filehandle.size
        page, is_mapped = series.keyframe, series.dataoffset is not None
        try:
            tifffile.TIFF.DECOMPRESSORS[page.compression], tifffile.TIFF.UNPREDICTORS[page.predictor]
        except KeyError as error:
            raise OptionError(f"{error.args[0]}: pip install imagecodecs, or write it with deflate") from error
        blocks = [zip(one.dataoffsets, one.databytecounts) for one in series.pages if one is not None]
        ends = [start + count for pairs in blocks for start, count in pairs]
        if max(*ends, (series.dataoffset or 0) + series.nbytes * is_mapped) > end:
            raise OptionError(f"the file is cut after {end} bytes")
        if use == "about":
            pixels = np.broadcast_to(np.zeros((), series.dtype), series.shape)
        else:
            pixels = series.asarray() if use == "read" or not is_mapped else tifffile.memmap(path, mode="r")
        are_pages = pixels.ndim == 3 and not series.axes.endswith("S")
        pixels = with_bands(np.moveaxis(pixels, 0, -1) if are_pages else pixels)
        has_alpha = any(sample in ALPHA for sample in page.extrasamples)
        return About(pixels.shape[1::-1], pixels.shape[2], pixels.dtype, has_alpha) if use == "about" else pixels
