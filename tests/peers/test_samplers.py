"""Our samplers draw the images of mmengine's, in the same order, also in mmdet's batches by aspect ratio."""

from itertools import islice

import mmengine.dataset.sampler as mmengine_sampler
import pytest
from mmdet.datasets.samplers import AspectRatioBatchSampler
from mmengine.dataset import DefaultSampler, InfiniteSampler

from vitdense.mm.data.seeded import SeededEpochSampler, SeededInfiniteSampler


class Images(list):
    def get_data_info(self, index):
        return {"width": self[index], "height": 4}


IMAGES = Images([3, 5, 4, 2, 9, 1, 7, 6, 8, 3, 5])


@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"round_up": False}, {"views": 2}])
@pytest.mark.parametrize(("rank", "processes"), [(0, 1), (0, 3), (2, 3)])
def test_order_of_epochs_and_of_an_endless_stream(rank, processes, options, monkeypatch):
    monkeypatch.setattr(mmengine_sampler, "get_dist_info", lambda: (rank, processes))
    plain = {name: value for name, value in options.items() if name != "views"}
    ours, theirs = SeededEpochSampler(IMAGES, seed=3, **options), DefaultSampler(IMAGES, seed=3, **plain)
    assert len(ours) == len(theirs)
    for epoch in range(3):
        ours.set_epoch(epoch), theirs.set_epoch(epoch)
        assert list(ours) == list(theirs)
    if "round_up" in options:
        return
    ours, theirs = SeededInfiniteSampler(IMAGES, seed=3, **options), InfiniteSampler(IMAGES, seed=3, **plain)
    assert list(islice(ours, 40)) == list(islice(theirs, 40))


@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_by_aspect_ratio(drop_last):
    samplers = (kind(IMAGES, seed=3) for kind in (SeededEpochSampler, DefaultSampler))
    ours, theirs = (AspectRatioBatchSampler(sampler, 2, drop_last) for sampler in samplers)
    assert list(ours) == list(theirs)
