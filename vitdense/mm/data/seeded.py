"""Data order and augmentation that depend only on the seed and the position in the stream.

The sampler attaches a seed to every index; `SeedFromSample`, the first transform of the pipeline, applies it. The data
then do not depend on the number of worker processes, and a resumed run gets the same data as an uninterrupted one.
"""

import random
from collections.abc import Iterator, Sized
from typing import Any

import numpy as np
import torch
from mmengine.dataset import DefaultSampler, InfiniteSampler

from vitdense.families import is_whole
from vitdense.mm.errors import ConfigError
from vitdense.mm.registry import DATA_SAMPLERS


class SeededIndex(int):
    """Index of a sample with `key`, the seed of this draw; see `Seeded`."""

    key: tuple[int, ...]

    def __new__(cls, index: int, key: tuple[int, ...]) -> "SeededIndex":
        self = super().__new__(cls, index)
        self.key = key
        return self

    def __mod__(self, other: int) -> "SeededIndex":  # by RepeatDataset
        return SeededIndex(int(self) % other, self.key)

    def __sub__(self, other: int) -> "SeededIndex":  # by ConcatDataset
        return SeededIndex(int(self) - other, self.key)

    def __reduce__(self) -> tuple:  # sent to worker processes
        return SeededIndex, (int(self), self.key)


class SeededList(list):
    """A list of indices; an item gets the seed of the position by which it is read."""

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return SeededIndex(found, place.key) if isinstance(place, SeededIndex) else found


def seed_everything(*keys: int) -> int:
    """Seed Python, numpy and torch from non-negative ints; returns the seed."""
    seed = int(np.random.SeedSequence(keys).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    return seed


class Seeded:
    """A sampler of mmengine with a seed per draw, made of the run's seed and the position in the stream.

    Args:
        dataset: Data set.
        views: Number of seeds per image, used in turn by epochs, so that augmentations repeat. None for a new seed in
            every draw.
        **options: Options of mmengine's class.
    """

    def __init__(self, dataset: Sized, views: int | None = None, **options: Any) -> None:
        if views is not None and not is_whole(views):
            raise ConfigError(f"sampler.views: got {views!r}, expected a whole number above 0, or None")
        super().__init__(dataset, **options)
        self.views = views

    def seeded(self, index: int, position: int, epoch: int) -> SeededIndex:
        """The index of an image at a position in the stream of all epochs and processes, with its seed."""
        if self.views is None:
            return SeededIndex(index, (self.seed, position))
        return SeededIndex(index, (self.seed, index, epoch % self.views, 1))  # NumPy ignores zeros at the end


@DATA_SAMPLERS.register_module()
class SeededEpochSampler(Seeded, DefaultSampler):
    """mmengine's `DefaultSampler`, with a seed per draw; see `Seeded`."""

    def __iter__(self) -> Iterator[SeededIndex]:
        start = self.epoch * self.total_size + self.rank
        for i, index in enumerate(super().__iter__()):
            yield self.seeded(index, start + i * self.world_size, self.epoch)


@DATA_SAMPLERS.register_module()
class SeededInfiniteSampler(Seeded, InfiniteSampler):
    """mmengine's `InfiniteSampler`, with a seed per draw; see `Seeded`."""

    def _infinite_indices(self) -> Iterator[SeededIndex]:
        for position, index in enumerate(super()._infinite_indices()):
            yield self.seeded(index, position, position // self.size)
