"""The step of a pipeline that loads bands, and what normalises them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmcv.transforms import BaseTransform
from mmengine.logging import print_log

from vitdense.errors import OptionError
from vitdense.extensions.bands import files
from vitdense.mm.data.images import by
from vitdense.mm.registry import TRANSFORMS

STRETCH = (2, 98)  # percentiles that pictures show as black and white
LOOKED_AT = 1 << 20  # pixels for them
ROWS, DRAWN = 256, 1 << 25  # of a picture at once; most pixels of an image in tiles that gets one


@TRANSFORMS.register_module()
class LoadBands(BaseTransform):
    """Load a TIFF or ``.npy`` file as ``[H, W, bands]`` float32, in the values and the order of the file.

    Args:
        bands: Bands of every file.
        drop_alpha: Whether to leave out the last band. With four bands it must be given: the fourth may be alpha.
        shown: The bands that pictures show as red, green and blue, counted from 1; by default the first three.
        in_tiles: Files become `Windows`, for a detector in tiles; no picture of over `DRAWN` pixels is made.
    """

    def __init__(
        self, bands: int, drop_alpha: bool | None = None, shown: Sequence[int] | None = None, in_tiles: bool = False
    ) -> None:
        if bands == 4 and drop_alpha is None:
            option = "drop_alpha=True or False (vitdense new: --alpha drop or keep)"
            raise OptionError(f"LoadBands: got 4 bands, the fourth of which may be alpha, expected {option}")
        self.bands, self.channels, self.in_tiles = bands, bands - bool(drop_alpha), in_tiles
        self.shown = tuple(shown or ((1, 2, 3) if self.channels > 2 else (1, 1, 1)))
        if len(self.shown) != 3 or not all(1 <= band <= self.channels for band in self.shown):
            raise OptionError(f"shown (--bands): got {shown}, expected three bands, 1 to {self.channels}")

    def load(self, image: str | Path | np.ndarray) -> "np.ndarray | Windows":
        """`read`, or `Windows` of a file ``in_tiles``."""
        return Windows(image, self) if self.in_tiles and isinstance(image, (str, Path)) else self.read(image)

    def read(self, image: str | Path | np.ndarray, place: Any = ...) -> np.ndarray:
        """The bands of a file, or of a place of it, or of an array ``[H, W, bands]``: [H, W, channels] float32.

        Raises:
            OptionError: It has another number of bands, NaN or infinity; see also `vitdense.extensions.bands.files`.
        """
        if not isinstance(image, (str, Path, np.ndarray)):
            raise OptionError(f"image: got {type(image).__name__}, expected a path or an array [H, W, bands]")
        is_array = isinstance(image, np.ndarray)
        name = "image" if is_array else f"image {image}"
        pixels = files.with_bands(image) if is_array else files.read(image, place)
        if not is_array or pixels.shape[2] != self.channels:  # of an array the last band may be left out already
            self.check(pixels.shape[2], name)
        pixels = np.ascontiguousarray(pixels[..., : self.channels], np.float32)
        if wrong := np.count_nonzero(~np.isfinite(pixels)):
            raise OptionError(f"{name} has {wrong} values of NaN or infinity, expected numbers; replace them, as by 0")
        return pixels

    def check(self, bands: int, name: str) -> None:
        if bands != self.bands:
            raise OptionError(f"{name} has {bands} bands, expected {self.bands}, as LoadBands and the model have")

    def transform(self, results: dict) -> dict:
        if (image := results.get("img")) is None:
            image = Windows(results["img_path"], self) if "tile" in results else self.load(results["img_path"])
        annotated, size = (results.get("width"), results.get("height")), image.shape[1::-1]
        if None not in annotated and annotated != size:  # of COCO files
            raise OptionError(f"image {results['img_path']} is {by(size)}, but annotated as {by(annotated)}")
        shapes = {"img_shape": image.shape[:2], "ori_shape": image.shape[:2]}
        return {**results, "img": image, **shapes}

    def picture(self, pixels: "np.ndarray | Windows") -> np.ndarray | None:
        """The `shown` bands of pixels ``[H, W, channels]``, each stretched by percentiles: [H, W, 3] uint8 RGB; None
        for more than `DRAWN` of a file in tiles."""
        height, width = pixels.shape[:2]
        if self.in_tiles and height * width > DRAWN:
            print_log(f"no picture is drawn of over {DRAWN} pixels")
            return None
        shown, step = [band - 1 for band in self.shown], max(1, round((height * width / LOOKED_AT) ** 0.5))
        low, high = np.percentile(pixels[::step, ::step][..., shown], STRETCH, axis=(0, 1))  # [3] each
        picture = np.empty((height, width, 3), np.uint8)
        for y in range(0, height, ROWS):
            shares = (pixels[y : y + ROWS, :][..., shown] - low) / np.maximum(high - low, 1e-12)
            picture[y : y + ROWS] = (shares.clip(0, 1) * 255).round()
        return picture


class Windows:
    """A file as a step loads it, ``[H, W, channels]`` float32, read where it is sliced."""

    def __init__(self, path: str | Path, step: LoadBands) -> None:
        self.path, self.step, about = path, step, files.about(path)
        step.check(about.bands, f"image {path}")
        self.shape = (*about.size[::-1], step.channels)

    def __getitem__(self, place: tuple[slice, slice]) -> np.ndarray:
        return self.step.read(self.path, place)


class ByBands:
    """A mixin for mm's data preprocessors, which take `mean` and `std` of one or three bands alone."""

    def __init__(self, mean: Sequence[float] = (), std: Sequence[float] = (), **options: Any) -> None:
        super().__init__(**options)
        self._enable_normalize = len(mean) > 0  # pictures of batches have none
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32).view(-1, 1, 1), False)
