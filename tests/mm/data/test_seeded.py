import pickle
import random

import numpy as np
import pytest
import torch
from mmdet.datasets import MultiImageMixDataset
from mmdet.structures.bbox import HorizontalBoxes
from mmengine.dataset import BaseDataset, ClassBalancedDataset, ConcatDataset, DefaultSampler, RepeatDataset
from torch.utils.data import DataLoader

from vitdense.mm.data.continued import skip
from vitdense.mm.data.detection import Mosaic
from vitdense.mm.data.seeded import SeededEpochSampler, SeededIndex, SeededInfiniteSampler, seed_everything
from vitdense.mm.data.transforms import SeedFromSample, seed_steps
from vitdense.mm.errors import ConfigError


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


class Numbers(BaseDataset):
    METAINFO = {"classes": ("a",)}  # noqa: RUF012

    def load_data_list(self):
        return [{"n": i} for i in range(4)]

    def get_cat_ids(self, index):
        return [int(index) == 3]


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


WRAPPERS = {
    "repeated": lambda d: RepeatDataset(d, times=3),
    "joined": lambda d: ConcatDataset([d, d]),
    "balanced": lambda d: ClassBalancedDataset(d, oversample_thr=1.0),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_seed_reaches_data_sets_inside_wrappers(wrap):
    inner = Numbers(pipeline=[SeedFromSample(), lambda results: {**results, "draw": draws()}])
    wrapped = wrap(inner)
    seed_steps(wrapped, SeededEpochSampler(wrapped, seed=1))
    last = len(wrapped) - 1
    a, b, again = (wrapped[SeededIndex(last, (0, k))] for k in (1, 2, 1))
    assert a["n"] == 3
    assert a["draw"] == again["draw"] != b["draw"]


class Backwards(RepeatDataset):
    def _get_ori_dataset_idx(self, index):
        return [3, 2, 1, 0][index % 4]


def test_a_wrapper_that_drops_seeds_is_refused():
    wrapped = Backwards(Numbers(pipeline=[SeedFromSample()]), times=2)
    seed_steps(wrapped, DefaultSampler(wrapped))
    with pytest.raises(ConfigError, match=r"SeededEpochSampler.*Backwards"):
        seed_steps(wrapped, SeededEpochSampler(wrapped, seed=1))


class Albu:
    """A step such as mmdet's and mmseg's `Albu`, which calls an object with its own generator."""

    def __init__(self):
        self.aug = self

    def set_random_seed(self, seed):
        self.own = random.Random(seed)

    def __call__(self, results):
        return {**results, "drawn": [*results.get("drawn", []), self.own.random()]}


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_generators_of_albumentations_are_seeded(is_wrapped):
    def draw(key):
        steps = [Albu(), Albu()]
        dataset = Numbers(pipeline=[SeedFromSample(), *([] if is_wrapped else steps)])
        if is_wrapped:
            dataset = MultiImageMixDataset(dataset, pipeline=[])
            dataset.pipeline, dataset.pipeline_types = steps, ["albu", "albu"]
        seed_steps(dataset)
        return pickle.loads(pickle.dumps(dataset))[SeededIndex(0, (1, key))]["drawn"]

    assert draw(2) == draw(2)
    assert len({*draw(2), *draw(3)}) == 4


def test_seed_everything_separates_keys():
    seen = set()
    for keys in ((0, 1), (1, 0), (0, 0), (1, 1)):
        seed_everything(*keys)
        seen.add(draws())
    assert len(seen) == 4


@pytest.mark.parametrize("workers", [0, 1])
def test_the_rest_of_an_epoch_has_the_mosaics_of_the_whole_epoch(workers):
    def load(results):
        pixels, boxes = np.full((16, 16, 3), results["n"], np.uint8), torch.tensor([[2.0, 2.0, 9.0, 9.0]])
        truth = {"gt_bboxes": HorizontalBoxes(boxes), "gt_bboxes_labels": np.array([results["n"]])}
        return {**results, **truth, "img": pixels, "img_shape": (16, 16), "gt_ignore_flags": np.zeros(1, bool)}

    class Pictures(BaseDataset):
        def load_data_list(self):
            return [{"n": i} for i in range(10)]

    inner = Pictures(pipeline=[SeedFromSample(), load])
    mixed = MultiImageMixDataset(inner, [dict(type=Mosaic, img_scale=(16, 16), pad_val=99)])
    loader = DataLoader(mixed, 2, sampler=SeededEpochSampler(mixed, seed=1), num_workers=workers, collate_fn=list)
    whole = [[one["img"] for one in batch] for batch in loader]
    skip(loader, 2)
    rest = [[one["img"] for one in batch] for batch in loader]
    np.testing.assert_array_equal(rest, whole[2:])
    assert len({one.tobytes() for batch in whole for one in batch}) == 10
