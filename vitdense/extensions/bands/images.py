"""What the core asks about image files: their size, and how a data set's are examined."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config

from vitdense.errors import OptionError
from vitdense.extensions.bands import files
from vitdense.mm.config.query import nodes, trunk_of, type_name
from vitdense.mm.data.images import ImageFile, header
from vitdense.mm.registry import TRANSFORMS

PLAIN, BITS = ("1", "L", "P", "RGB"), 258  # modes of Pillow; the tag BitsPerSample
FOR_RGB = {  # steps that are made for colours of 8 bits
    *("PhotoMetricDistortion", "YOLOXHSVRandomAug", "Color", "ColorTransform", "Brightness", "Contrast", "Sharpness"),
    *("Posterize", "Solarize", "SolarizeAdd", "AutoContrast", "Equalize", "Invert", "CLAHE", "AdjustGamma", "RGB2Gray"),
}


def about(path: str | Path) -> files.About | None:
    """About ``.npy``, or a TIFF that is not 8 bits of 1 or 3 bands: mm's reader would lose some. None for others."""
    if Path(path).suffix.lower() not in (*files.TIFF, ".npy"):
        return None
    with suppress(OSError), header(path) as image:  # compressed files of 8 bits need no other package
        is_plain = image.mode in PLAIN and max(image.tag_v2.get(BITS, (1,))) <= 8
        is_one = image.n_frames == 1 or len(image.getbands()) > 1  # else grey pages may be bands
        if is_plain and (is_one or files.about(path).bands == 1):
            return None
    return files.about(path)


def size(path: str | Path) -> tuple[int, int] | None:
    """Width and height; None for a file that is not read here."""
    try:
        found = about(path)
    except OptionError:  # who reads the pixels says it
        return None
    return found and found.size


def picture(path: str | Path) -> np.ndarray | None:
    """The first bands of a file, as `LoadBands` shows them: [H, W, 3] uint8 RGB; None as of `about`."""
    from vitdense.extensions.bands.step import LoadBands

    found = about(path)
    return None if found is None else LoadBands(found.bands, drop_alpha=False).picture(files.read(path))


def in_windows(step: Mapping) -> dict | None:
    """A `LoadBands` that reads windows."""
    return {**step, "in_tiles": True} if type_name(step) == "LoadBands" else None


def examiner(steps: Sequence[Mapping], cfg: Config) -> Callable[..., ImageFile] | None:
    """The function that examines image files for a pipeline that loads bands.

    Raises:
        OptionError: The model takes other channels, or a step is for RGB.
    """
    options = next((step for step in steps if type_name(step) == "LoadBands"), None)
    if options is None:
        return None
    step = TRANSFORMS.build(options)
    values = len((cfg.model.get("data_preprocessor") or {}).get("mean") or range(step.channels))
    if {channels := trunk_of(cfg).get("in_channels", 3), values} != {step.channels}:
        got = f"got {channels}, and {values} values of data_preprocessor.mean"
        expected = f"expected {step.channels} of both, as LoadBands gives; `vitdense new` writes them"
        raise OptionError(f"model.backbone.in_channels: {got}, {expected}")
    if wrong := sorted({type_name(one) for one in nodes(list(steps))} & FOR_RGB):
        fix = "leave it out; flips, resizes, crops and affine steps may stay"
        raise OptionError(f"pipeline: got {', '.join(wrong)}, for RGB of 8 bits, beside LoadBands; {fix}")
    return partial(_examine, step)


def _examine(step: Any, path: str, whole: bool = True) -> ImageFile:
    """Read a file if `whole` or if it may have NaN; else look at its start."""
    try:
        found = files.about(path)
        step.check(found.bands, f"image {path}")
        if whole or found.dtype.kind == "f":
            step.load(path)
    except OptionError as error:
        return ImageFile(path, error=str(error).removeprefix(f"image {path} "))
    return ImageFile(path, f"{found.bands} bands of {found.dtype}", found.size, found.size)
