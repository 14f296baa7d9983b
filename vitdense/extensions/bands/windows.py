"""Files of bands for a detector in tiles, which are read one by one."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mmdet.structures import DetDataSample
from mmengine.logging import print_log

from vitdense.extensions.bands import files
from vitdense.mm.config.query import split_pipeline, test_steps
from vitdense.mm.predictor import ImageReader, Predictor

DRAWN = 1 << 25  # most pixels of an image that gets a picture


class Windows:
    """A file as `LoadBands` loads it, ``[H, W, channels]`` float32, read where it is sliced."""

    def __init__(self, path: str | Path, step: Any) -> None:
        pixels, self.load = files.window(path), step.load
        step.check(pixels.shape[2], f"image {path}")
        self.shape = (*pixels.shape[:2], step.channels)
        is_mapped = isinstance(pixels, np.memmap)  # mapped anew for each window: what it has read leaves the memory
        self.open = partial(files.window, path) if is_mapped else lambda: pixels

    def __getitem__(self, place: Any) -> np.ndarray:
        return self.load(np.array(self.open()[place]))


class WindowReader(ImageReader):
    """As `ImageReader`; pixels of a file are `Windows`, also in place of a picture of more than `DRAWN`."""

    def pixels(self, image: Any) -> Any:
        return Windows(image, self._loader) if isinstance(image, (str, Path)) else self._loader.load(image)

    def picture(self, pixels: Any) -> Any:
        if pixels.shape[0] * pixels.shape[1] <= DRAWN:
            return self._loader.picture(pixels)
        print_log(f"no picture is drawn of over {DRAWN} pixels")
        return pixels

    def inputs(self, image: Any, pixels: Any) -> dict:
        size = pixels.shape[:2]
        return {"inputs": pixels, "data_samples": DetDataSample(metainfo={"img_shape": size, "ori_shape": size})}


def after(model: Predictor, checkpoint: str) -> None:
    if model.inference.tiles is not None and model.reader.own_reader == "LoadBands":
        model.reader = WindowReader(split_pipeline(test_steps(model.model.cfg))[0])
