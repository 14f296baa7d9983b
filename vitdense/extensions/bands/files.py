"""Files of bands: TIFF by tifffile, ``.npy`` by NumPy. Pixels are as in the file, not scaled."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitdense.errors import OptionError
from vitdense.mm.errors import ConfigError

TIFF = (".tif", ".tiff")
ALPHA, PLANES = (1, 2), 2  # of TIFF's tags ExtraSamples and PlanarConfiguration


class About(NamedTuple):
    """What the start of a file says."""

    size: tuple[int, int]  # width and height
    bands: int
    dtype: np.dtype
    has_alpha: bool = False  # it calls a band alpha


def about(path: str | Path) -> About:
    """Look at a file without reading its pixels. For errors see `read`."""
    with _opened(path) as image:
        if isinstance(image, np.ndarray):
            return About(image.shape[1::-1], image.shape[2], image.dtype)
        _check(image)
        size, bands = _empty(image).shape[1::-1], _empty(image).shape[2]
        return About(size, bands, image.dtype, any(sample in ALPHA for sample in image.keyframe.extrasamples))


def read(path: str | Path, place: Any = ...) -> np.ndarray:
    """The pixels of a file, ``[H, W, bands]`` in its own data type. Bands of a TIFF are samples of pixels, or pages.

    Args:
        path: The file.
        place: Slices of rows and columns, which alone are read; of a compressed TIFF the segments that have them.

    Raises:
        ConfigError: It is no image ``[H, W]`` or ``[H, W, bands]`` of numbers, or is cut, or is compressed as
            tifffile alone cannot read.
    """
    with _opened(path) as image:
        if isinstance(image, np.ndarray):
            return np.array(image[place])
        _check(image)
        if image.dataoffset is None and place is not ...:
            return _segments(image, place)
        import tifffile

        pixels = image.asarray() if image.dataoffset is None else tifffile.memmap(path, mode="r")
        return np.array(_with_bands_last(pixels, image.axes)[place], image.dtype)


def geo_keys(path: str | Path) -> Mapping[str, Any]:
    """The tags of a GeoTIFF, as tifffile names them; empty for other files."""
    if Path(path).suffix.lower() not in TIFF:
        return {}
    with _opened(path) as image:
        return image.keyframe.geotiff_tags or {}


@contextmanager
def _opened(path: str | Path) -> Iterator[Any]:
    """The first series of a TIFF, or a mapped array ``[H, W, bands]``; errors in the block name the file."""
    try:
        if Path(path).suffix.lower() not in TIFF:
            yield with_bands(np.load(path, mmap_mode="r", allow_pickle=False))
            return
        try:
            import tifffile
        except ModuleNotFoundError as error:
            raise OptionError("it needs tifffile: pip install 'vitdense[bands]'") from error
        with tifffile.TiffFile(path) as tiff:
            if (turn := tiff.pages[0].tags.valueof("Orientation", 1)) in range(2, 9):
                raise OptionError(f"its tag Orientation is {turn}, so that it is shown turned; store it turned, as 1")
            yield tiff.series[0]
    except Exception as error:  # readers have no error in common
        kind = "" if isinstance(error, OptionError) else f"{type(error).__name__}: "
        raise ConfigError(f"image {path} cannot be read ({kind}{error})") from error


def with_bands(pixels: np.ndarray) -> np.ndarray:
    """``[H, W]`` or ``[H, W, bands]`` as ``[H, W, bands]``; else an OptionError."""
    if pixels.ndim not in (2, 3) or not pixels.size or pixels.dtype.kind not in "uif":
        raise OptionError(f"got {pixels.dtype} {list(pixels.shape)}, expected numbers, [H, W] or [H, W, bands]")
    return pixels.reshape(*pixels.shape[:2], -1)


def _with_bands_last(pixels: np.ndarray, axes: str) -> np.ndarray:
    are_pages = pixels.ndim == 3 and not axes.endswith("S")
    return with_bands(np.moveaxis(pixels, 0, -1) if are_pages else pixels)


def _empty(series: Any) -> np.ndarray:
    """An array as `read` gives it, without memory."""
    return _with_bands_last(np.broadcast_to(np.zeros((), series.dtype), series.shape), series.axes)


def _check(series: Any) -> None:
    """Raise an OptionError for a volume, a compression that tifffile alone cannot read, or planes that are absent."""
    from tifffile import TIFF as KNOWN

    page, end = series.keyframe, series.keyframe.parent.filehandle.size
    try:
        KNOWN.DECOMPRESSORS[page.compression], KNOWN.UNPREDICTORS[page.predictor]
    except KeyError as error:
        raise OptionError(f"{error.args[0]}: pip install imagecodecs, or write it with deflate") from error
    if page.imagedepth > 1:
        raise OptionError(f"its tag ImageDepth is {page.imagedepth}, so a volume; write its planes as pages or samples")
    if missing := sum(one is None for one in series.pages):
        raise OptionError(f"{missing} of {len(series.pages)} planes of the series are missing; write it anew")
    ends = [np.add(one.dataoffsets, one.databytecounts).max() for one in series.pages]
    if max(*ends, 0 if series.dataoffset is None else series.dataoffset + series.nbytes) > end:
        raise OptionError(f"the file is cut after {end} bytes")


def _segments(series: Any, place: Sequence[slice]) -> np.ndarray:
    """`read` for a TIFF in tiles or compressed strips: decodes the segments that meet a place."""
    key, shape, first = series.keyframe, _empty(series).shape, 0
    rows, columns = (np.arange(length)[one] for length, one in zip(shape, place))
    pixels = np.full((len(rows), len(columns), shape[2]), key.nodata, series.dtype)
    height, width = key.chunks[:2]
    down, across = -(-shape[0] // height), -(-shape[1] // width)
    planes = range(key.samplesperpixel if key.planarconfig == PLANES else 1)
    met = [(y, x) for y in np.unique(rows // height).tolist() for x in np.unique(columns // width).tolist()]
    for page in series.pages:
        for i in [(plane * down + y) * across + x for plane in planes for y, x in met]:
            if not page.databytecounts[i]:
                continue
            key.parent.filehandle.seek(page.dataoffsets[i])
            data = key.parent.filehandle.read(page.databytecounts[i])
            (part,), (sample, _, y, x, _), _ = key.decode(
                data, i, jpegtables=page.jpegtables, jpegheader=key.jpegheader
            )
            inside = (rows >= y) & (rows < y + height), (columns >= x) & (columns < x + width)
            bands = range(first + sample, first + sample + part.shape[2])
            pixels[np.ix_(*inside, bands)] = part[np.ix_(rows[inside[0]] - y, columns[inside[1]] - x)]
        first += key.samplesperpixel
    return pixels
