"""Images on which a program is compared with its model, and to which an int8 program is fitted."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitdense.mm.data.images import read_pixels
from vitdense.mm.errors import ConfigError
from vitdense.mm.predictor import Predictor
from vitdense.mm.registry import DATASETS
from vitdense.runtime import fitted, normalised


class Sample(NamedTuple):
    """An image to compare at.

    Attributes:
        given: What the file takes: `image`, or the photo, ``[1, H, W, 3]`` uint8.
        image: What the model takes, normalised and not padded, ``[1, 3, h, w]``.
        size: Of the photo, (H, W), or of the image.
    """

    given: Tensor
    image: Tensor
    size: tuple[int, int]


def of_photo(path: str, about: Mapping) -> Sample:
    """A file for a program that takes photos; `about` is its description."""
    pixels = read_pixels(path)
    size = pixels.shape[:2]
    image = normalised(pixels, fitted(size, about["resize"]), about)
    return Sample(torch.from_numpy(pixels)[None], torch.from_numpy(np.ascontiguousarray(image)), size)


def of_image(path: str, predictor: Predictor, static: tuple[int, int] | None) -> Sample:
    """An image file after the test pipeline, then resized to `static` (h, w) if given."""
    data = predictor.read(path)
    padded = predictor.model.data_preprocessor({key: [value] for key, value in data.items()}, False)["inputs"]
    h, w = data["inputs"].shape[1:]
    image = padded[..., :h, :w]  # [1, 3, h, w]
    if static:
        image = F.interpolate(image, static, mode="bilinear")  # [1, 3, *static]
    return Sample(image, image, tuple(image.shape[2:]))


def of_noise(shape: Sequence[int]) -> Sample:
    """Images ``[B, C, h, w]`` of noise."""
    image = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return Sample(image, image, tuple(shape[2:]))


def paths_of(dataset: Mapping, given: Sequence[str], number: int) -> Sequence[str]:
    """The files given, or this many of a data set.

    Raises:
        ConfigError: No file is given, and the data set cannot be read.
    """
    if given:
        return given
    try:
        images = DATASETS.build({**dataset, "pipeline": []})
    except OSError as error:
        raise ConfigError(f"data of the config cannot be read ({error}); name photos: --images, --calibrate") from error
    step = max(len(images) // number, 1)
    return [images.get_data_info(i)["img_path"] for i in range(0, len(images), step)[:number]]
