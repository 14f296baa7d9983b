"""Checkpoints that a training does not resume from, and where in an epoch it resumes."""

from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import ConstantLR, CosineAnnealingLR, LinearLR, OptimWrapper
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from vitdense.mm.data.continued import Rest, skip
from vitdense.mm.errors import ConfigError
from vitdense.mm.train.resume import check_steps, go_on, place_in, stay_in


def run(optimizer=torch.optim.AdamW, schedules=(LinearLR, CosineAnnealingLR), groups=(1, 1), scaled=False):
    parameters = [{"params": [torch.nn.Parameter(torch.ones(2)) for _ in range(number)]} for number in groups]
    wrapper = OptimWrapper(optimizer(parameters, lr=0.1))
    made = [kind(wrapper, end=9, **({"T_max": 9} if kind is CosineAnnealingLR else {})) for kind in schedules]
    if scaled:
        wrapper.loss_scaler = None
    cfg = Config({"optim_wrapper": {"optimizer": {"type": optimizer.__name__}}})
    saved = {
        "meta": {"cfg": cfg.pretty_text},
        "optimizer": wrapper.optimizer.state_dict() | ({"loss_scaler": {}} if scaled else {}),
        "param_schedulers": [each.state_dict() for each in made],
    }
    return SimpleNamespace(optim_wrapper=wrapper, param_schedulers=made, cfg=cfg), saved


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"optimizer": torch.optim.SGD}, "SGD.*AdamW"),
        ({"optimizer": torch.optim.Adam}, "Adam, .*AdamW"),
        ({"groups": (2,)}, "other parameters"),
        ({"groups": (1, 2)}, "other parameters"),
        ({"scaled": True}, "with a scaled loss"),
        ({"schedules": (LinearLR,)}, "param_scheduler"),
        ({"schedules": (LinearLR, ConstantLR)}, "param_scheduler"),
        ({"schedules": ()}, "param_scheduler"),
    ],
)
def test_states_of_other_steps_are_not_loaded(change, named):
    runner, saved = run()
    check_steps(runner, saved)
    other, of_other = run(**change)
    with pytest.raises(ConfigError, match=named):
        check_steps(other, saved)
    with pytest.raises(ConfigError):
        check_steps(runner, of_other)


GROUPED = type("Grouped", (BatchSampler,), {})(RandomSampler(range(11)), 1, False)


def loop(images, batch, epoch, iterations, **options):
    loader = DataLoader(range(images), batch, **options)
    return SimpleNamespace(dataloader=loader, epoch=epoch, iter=iterations, max_epochs=3)


@pytest.mark.parametrize(("batch", "made", "seen"), [(2, 3, 6), (1, 2, 2), (4, 2, 8), (4, 3, 11), (6, 1, 6)])
def test_an_epoch_resumes_after_the_used_images(batch, made, seen):
    rest = range(seen, 11)
    saved = place_in(loop(11, batch, 1, 0), made)._asdict()
    for now in (batch, 1, 2):
        if saved["images"] % now and now != batch:
            continue
        resumed = loop(11, now, 1, 100 + made, num_workers=0)
        go_on(resumed, saved)
        assert [x for images in resumed.dataloader for x in images.tolist()] == list(rest)
        assert [x for images in resumed.dataloader for x in images.tolist()] == list(range(11))  # the next epoch
        left = -(-len(rest) // now) + -(-11 // now)
        assert resumed._max_iters == 100 + made + left


@pytest.mark.parametrize(
    ("now", "named"),
    [
        (loop(12, 2, 1, 8), "12 images"),
        (loop(10, 2, 1, 8), "10 images"),
        (loop(11, 4, 1, 8), "4 images a step"),
        (loop(11, 1, 1, 8, batch_sampler=GROUPED), "1 images a step"),
    ],
)
def test_what_has_no_place_in_the_epoch_is_refused(now, named):
    saved = place_in(loop(11, 2, 1, 0), 3)._asdict()
    with pytest.raises(ConfigError, match=named):
        go_on(now, saved)
    go_on(now, saved | {"images": 0, "batches": 0})  # from the end of an epoch, any may
    assert not isinstance(now.dataloader.batch_sampler, Rest)


def test_checkpoints_of_mmengine_are_from_the_end_of_an_epoch():
    resumed = loop(8, 2, 1, 4)
    go_on(resumed, None)
    assert not isinstance(resumed.dataloader.batch_sampler, Rest)
    assert resumed._max_iters == 12


def test_the_rest_of_an_epoch_is_loaded_as_in_a_whole_epoch():
    options = dict(num_workers=2, prefetch_factor=3, persistent_workers=True)
    loader = DataLoader(range(8), 2, generator=torch.Generator().manual_seed(1), **options)
    skip(loader, 1)
    passing = iter(loader)
    assert passing._prefetch_factor == 3
    assert passing._base_seed == torch.empty((), dtype=torch.int64).random_(generator=torch.manual_seed(1)).item()
    assert len(list(passing)) == 3


def test_paths_of_checkpoints_are_in_the_resuming_folder(tmp_path):
    info = {"best_ckpt": "/old/best_iter_3.pth", "best_ckpt_mAP": "C:\\old\\b.pth", "last_ckpt": "a.pth"}
    info["best_score"] = 1
    hub = SimpleNamespace(runtime_info=info, update_info=lambda key, value: info.update({key: value}))
    stay_in(tmp_path, hub)
    names = {"best_ckpt": "best_iter_3.pth", "best_ckpt_mAP": "b.pth", "last_ckpt": "a.pth"}
    assert info == {key: str(tmp_path / name) for key, name in names.items()} | {"best_score": 1}
