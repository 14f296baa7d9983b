"""Data order and augmentation that depend on the seed and the position in the stream only.

The sampler attaches a seed to every index; `SeedFromSample`, the first transform of the pipeline, applies it. The data
then do not depend on the number of worker processes, and a resumed run gets the same data as an uninterrupted one.
"""

from collections.abc import Iterator

from mmengine.dataset import DefaultSampler, InfiniteSampler

from vitdense.registry import DATA_SAMPLERS


class SeededIndex(int):
    """Index of a sample with the seed of this draw, `key`: (seed of the run, position in the stream)."""

    key: tuple[int, int]

    def __new__(cls, index: int, key: tuple[int, int]) -> "SeededIndex":
        self = super().__new__(cls, index)
        self.key = key
        return self

    def __mod__(self, other: int) -> "SeededIndex":  # by RepeatDataset
        return SeededIndex(int(self) % other, self.key)

    def __sub__(self, other: int) -> "SeededIndex":  # by ConcatDataset
        return SeededIndex(int(self) - other, self.key)

    def __reduce__(self) -> tuple:  # sent to worker processes
        return SeededIndex, (int(self), self.key)


@DATA_SAMPLERS.register_module()
class SeededEpochSampler(DefaultSampler):
    """mmengine's `DefaultSampler`, with a seed per draw."""

    def __iter__(self) -> Iterator[SeededIndex]:
        start = self.epoch * self.total_size + self.rank
        for i, index in enumerate(super().__iter__()):
            yield SeededIndex(index, (self.seed, start + i * self.world_size))


@DATA_SAMPLERS.register_module()
class SeededInfiniteSampler(InfiniteSampler):
    """mmengine's `InfiniteSampler`, with a seed per draw."""

    def _infinite_indices(self) -> Iterator[SeededIndex]:
        for position, index in enumerate(super()._infinite_indices()):
            yield SeededIndex(index, (self.seed, position))
