"""Data order and augmentation that depend on the seed and the position in the stream only.

The sampler attaches a seed to every index; `SeedFromSample`, the first transform of the pipeline, applies it. The data
then do not depend on the number of worker processes, and a resumed run gets the same data as an uninterrupted one.
"""

import random
import sys
from collections.abc import Iterator, Sized
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch
from mmengine.dataset import DefaultSampler, InfiniteSampler
from torch.utils.data import Dataset

from vitdense.families import is_whole
from vitdense.mm.errors import ConfigError
from vitdense.mm.registry import DATA_SAMPLERS


class SeededIndex(int):
    """Index of a sample with the seed of this draw, `key`: see `Seeded`."""

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


GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
WITHOUT = (str, bytes, int, float, type, ModuleType, np.ndarray, torch.Tensor, torch.nn.Module, Dataset)

LONG = 1000  # items of data, not of transforms


def seed_everything(*keys: int) -> None:
    """Seed Python, numpy and torch from a tuple of non-negative ints; different tuples give independent streams."""
    seed = int(np.random.SeedSequence(keys).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def calling_pipelines() -> list[Any]:
    """The transforms of everything that calls this code: mm shows a step of a pipeline neither its pipeline nor that
    of a wrapper of data sets around it."""
    found, frame = [], sys._getframe(1)
    while frame := frame.f_back:
        owner = vars_of(frame.f_locals.get("self"))
        found += [owner[name] for name in ("transforms", "pipeline") if name in owner]
    return found


def vars_of(item: Any) -> dict[str, Any]:
    """The attributes of an object; none of one that has a fixed set."""
    return getattr(item, "__dict__", {})


def seed_generators(items: Any, key: tuple[int, ...]) -> None:
    """Seed the generators that objects have of their own, such as those of albumentations, in place.

    Args:
        items: Objects, in which they are searched, in attributes and containers too; data sets are left out.
        key: Non-negative ints; each generator gets a stream of its own.
    """
    seen: dict[int, Any] = {}
    number, left = 0, [items]
    while left:
        item = left.pop()
        if isinstance(item, WITHOUT) or item is None or id(item) in seen:
            continue
        seen[id(item)] = item
        if isinstance(item, GENERATORS):
            seed = int(np.random.SeedSequence((*key, number)).generate_state(1)[0])
            number += 1
            if isinstance(item, np.random.Generator):
                item.bit_generator.state = type(item.bit_generator)(seed).state
            else:
                getattr(item, "manual_seed", getattr(item, "seed", None))(seed)
        elif isinstance(item, (dict, list, tuple)):
            if len(item) < LONG:
                left += item.values() if isinstance(item, dict) else item
        elif isinstance(item, partial):
            left += [item.func, item.args, item.keywords]
        else:
            left += vars_of(item).values()


class Seeded:
    """A sampler of mmengine with a seed per draw: that of the run, and the position in the stream.

    Args:
        dataset: Data set.
        views: Of an image, how many seeds there are: an epoch takes one of them, in turn, and augmentations come back.
            None: as many as draws.
        **options: Of mmengine's class.
    """

    def __init__(self, dataset: Sized, views: int | None = None, **options: Any) -> None:
        if views is not None and not is_whole(views):
            raise ConfigError(f"sampler.views: got {views!r}, expected a whole number above 0, or None")
        super().__init__(dataset, **options)
        self.views = views

    def seeded(self, index: int, position: int, epoch: int) -> SeededIndex:
        """An image at a position in the stream of all epochs and processes."""
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
