"""Data order and augmentation as a pure function of the seed and the position in the stream.

The sampler attaches a seed to every index, the first transform of the pipeline reads it. Worker processes then
need no random state of their own, so that their number does not matter and a resumed run sees the same data.
"""

from collections.abc import Iterator

from mmcv.transforms import BaseTransform
from mmengine.dataset import DefaultSampler, InfiniteSampler

from vitdense.engine.hooks import seed_everything
from vitdense.registry import DATA_SAMPLERS, TRANSFORMS


class SeededIndex(int):
    """Index of a sample that also knows the seed of this draw of it: (run seed, position in the stream)."""

    key: tuple[int, int]

    def __new__(cls, index: int, key: tuple[int, int]) -> "SeededIndex":
        self = super().__new__(cls, index)
        self.key = key
        return self

    def __mod__(self, other: int) -> "SeededIndex":  # of a repeated data set
        return SeededIndex(int(self) % other, self.key)

    def __sub__(self, other: int) -> "SeededIndex":  # of concatenated ones
        return SeededIndex(int(self) - other, self.key)

    def __reduce__(self) -> tuple:  # to worker processes
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


@TRANSFORMS.register_module()
class SeedFromSample(BaseTransform):
    """First transform of a pipeline: seeds Python, numpy and torch from the draw.

    An index without a seed goes on from where the generators are: one that mmengine draws in place of a sample that
    could not be used (then they are where the first draw led, so the run stays reproducible), or one from a sampler or
    wrapper that does not pass the seed on (then it does not).
    """

    def transform(self, results: dict) -> dict:
        index = results["sample_idx"]
        if isinstance(index, SeededIndex):
            seed_everything(*index.key)
        return results
