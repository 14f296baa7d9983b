"""Images on which a program is compared with its model, and to which an int8 program is fitted."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitdense.mm.errors import ConfigError
from vitdense.mm.predictor import Predictor
from vitdense.mm.registry import DATASETS
from vitdense.runtime import fitted, normalised


class Sample(NamedTuple):
    """An image to compare at.

    Attributes:
        given: What the file takes: an image ``[1, 3, h, w]``, normalised and not padded, or a photo, ``[1, H, W, 3]``
            uint8.
        image: What the model takes, ``[1, 3, h, w]``: after the test pipeline of the config.
        size: (H, W) in whose pixels objects are: of the photo.
    """

    given: Tensor
    image: Tensor
    size: tuple[int, int]


def of_photo(path: str, predictor: Predictor, about: Mapping, static: bool, preprocessing: bool) -> Sample:
    """An image file, which the model gets from the test pipeline, and the program from `vitdense.runtime`.

    Args:
        path: Of the file.
        predictor: The model.
        about: The description of the program.
        static: The program has a size of its own, in place of that of the test pipeline.
        preprocessing: The program takes photos.
    """
    pixels = predictor.pixels(path)
    is_known = "resize" in about and predictor.own_reader is None
    if is_known:
        seen = fitted(pixels.shape[:2], about["resize"])
        given = torch.from_numpy(np.ascontiguousarray(normalised(pixels, seen, about)))
    if not static:
        data = predictor.read(path, pixels)
        padded = predictor.model.data_preprocessor({key: [value] for key, value in data.items()}, False)["inputs"]
        h, w = data["inputs"].shape[1:]
        image = padded[..., :h, :w]  # [1, 3, h, w]
    if not is_known:  # steps that the runtime does not know
        return Sample(image, image, (h, w))
    photo = torch.from_numpy(pixels)[None]
    return Sample(photo if preprocessing else given, given if static else image, pixels.shape[:2])


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
