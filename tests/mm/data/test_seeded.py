import pickle
import random
from functools import partial

import numpy as np
import pytest
import torch

pytest.importorskip("mmcv")
from mmcv.transforms import RandomApply
from mmengine.dataset import BaseDataset, Compose, ConcatDataset, RepeatDataset
from torch.utils.data import DataLoader

from vitdense.mm.data.continued import ContinuedLoader
from vitdense.mm.data.seeded import SeededEpochSampler, SeededIndex, SeededInfiniteSampler, seed_everything
from vitdense.mm.data.transforms import SeedFromSample


def test_seeded_index_can_be_pickled():
    index = pickle.loads(pickle.dumps(SeededIndex(5, (3, 77))))
    assert index == 5
    assert isinstance(index, int)
    assert index.key == (3, 77)


def test_infinite_sampler_continues_after_skip():
    whole, resumed = (SeededInfiniteSampler(range(7), seed=3) for _ in range(2))
    stream = [next(it) for it in [iter(whole)] for _ in range(20)]
    resumed.skip(9)
    rest = [next(it) for it in [iter(resumed)] for _ in range(11)]
    assert rest == stream[9:]
    assert [i.key for i in rest] == [i.key for i in stream[9:]]
    assert len({i.key for i in stream}) == 20


def test_epoch_sampler_has_other_seeds_every_epoch():
    sampler = SeededEpochSampler(range(5), seed=1)
    keys = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        keys += [i.key for i in sampler]
    assert len(set(keys)) == 15


def draws():
    return random.random(), np.random.rand(), float(torch.rand(()))  # noqa: NPY002


def test_seed_from_sample_seeds_all_generators():
    seed = SeedFromSample()
    a = [draws() for key in ((1, 2), (1, 3), (1, 2)) if seed.transform({"sample_idx": SeededIndex(0, key)})]
    assert a[0] == a[2]
    assert all(x != y for x, y in zip(a[0], a[1]))
    seed.transform({"sample_idx": SeededIndex(0, (1, 2))})
    seed.transform({"sample_idx": 4})  # without a seed: the generators stay as they are
    assert draws() == a[0]


@pytest.mark.parametrize("wrap", [lambda d: RepeatDataset(d, times=3), lambda d: ConcatDataset([d, d])])
def test_seed_reaches_data_sets_inside_wrappers(wrap):
    class Numbers(BaseDataset):
        def load_data_list(self):
            return [{"n": i} for i in range(4)]

    inner = Numbers(pipeline=[SeedFromSample(), lambda results: {**results, "draw": draws()}])
    wrapped = wrap(inner)
    last = len(wrapped) - 1
    a, b, again = (wrapped[SeededIndex(last, (0, k))] for k in (1, 2, 1))
    assert a["n"] == 3
    assert a["draw"] == again["draw"] != b["draw"]


class OwnGenerators:
    """A transform as of albumentations: generators of its own, here and in what it calls."""

    def __init__(self):
        self.own = np.random.default_rng(), random.Random()
        self.inner = {"old": np.random.RandomState(), "steps": [partial(OwnGenerators.draw, torch.Generator())]}

    @staticmethod
    def draw(generator):
        return float(torch.rand((), generator=generator))

    def __call__(self, results):
        new, python = self.own
        drawn = new.random(), python.random(), self.inner["old"].rand(), self.inner["steps"][0]()
        return {**results, "drawn": [*results.get("drawn", []), *drawn]}


@pytest.mark.parametrize("place", ["pipeline", "nested", "wrapper"])
def test_generators_of_transforms_are_seeded(place):
    def build():
        steps = [OwnGenerators(), OwnGenerators()]
        if place == "pipeline":
            return Compose([SeedFromSample(), *steps])
        if place == "nested":
            return Compose([SeedFromSample(), RandomApply(steps, prob=1.0)])
        return lambda results: mixed[results["sample_idx"]]

    class Numbers(BaseDataset):
        METAINFO = {"classes": ("a",)}  # noqa: RUF012

        def load_data_list(self):
            return [{"n": i} for i in range(4)]

    if place == "wrapper":
        from mmdet.datasets import MultiImageMixDataset

        mixed = MultiImageMixDataset(Numbers(pipeline=[SeedFromSample()]), pipeline=[])
        mixed.pipeline, mixed.pipeline_types = [OwnGenerators(), OwnGenerators()], ["own", "own"]
    of_seed = [build()({"sample_idx": SeededIndex(0, (1, k))})["drawn"] for k in (2, 3, 2)]
    assert of_seed[0] == of_seed[2]
    assert len({*of_seed[0], *of_seed[1]}) == 16


def test_seed_everything_separates_keys():
    seen = set()
    for keys in ((0, 1), (1, 0), (0, 0), (1, 1)):
        seed_everything(*keys)
        seen.add(draws())
    assert len(seen) == 4


@pytest.mark.parametrize("workers", [0, 1])
def test_the_rest_of_an_epoch_has_the_mosaics_of_the_whole_epoch(workers):
    mmdet = pytest.importorskip("mmdet.datasets")
    from mmdet.structures.bbox import HorizontalBoxes

    from vitdense.mm.data.detection import Mosaic

    def load(results):
        boxes = HorizontalBoxes(torch.tensor([[2.0, 2.0, 9.0, 9.0]]))
        pixels = np.full((16, 16, 3), results["n"], np.uint8)
        arrays = {
            "img": pixels,
            "img_shape": (16, 16),
            "gt_bboxes": boxes,
            "gt_bboxes_labels": np.array([results["n"]]),
        }
        return {**results, **arrays, "gt_ignore_flags": np.zeros(1, bool)}

    class Pictures(BaseDataset):
        def load_data_list(self):
            return [{"n": i} for i in range(10)]

    inner = Pictures(pipeline=[SeedFromSample(), load])
    mixed = mmdet.MultiImageMixDataset(inner, [dict(type=Mosaic, img_scale=(16, 16), pad_val=99)])
    loader = DataLoader(mixed, 2, sampler=SeededEpochSampler(mixed, seed=1), num_workers=workers, collate_fn=list)
    whole = [[one["img"] for one in batch] for batch in loader]
    rest = [[one["img"] for one in batch] for batch in ContinuedLoader(loader, 2)]
    np.testing.assert_array_equal(rest, whole[2:])
    assert len({one.tobytes() for batch in whole for one in batch}) == 10
