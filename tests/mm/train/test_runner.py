"""What our Runner overrides in mmengine's: each with what mmengine still leaves to repair. A test that fails here says
that the override may go; that the repair works is shown in test_guards.py and tools/."""

import logging
from pathlib import Path

import mmengine.runner
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.hooks import EarlyStoppingHook
from mmengine.logging import MessageHub
from mmengine.model import BaseModel
from scipy.optimize import linear_sum_assignment

from vitdense.mm.train.runner import COSTS_NOT_FINITE, Runner

MMENGINE = mmengine.runner.Runner


class Toy(BaseModel):
    """A weight, whose gradient is the input."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, inputs, mode="loss"):
        return {"loss": self.layer(torch.stack(inputs)).sum()}


class Perfect(BaseMetric):
    def process(self, data_batch, data_samples):
        self.results.append(0)

    def compute_metrics(self, results):
        return {"mIoU": 100.0}


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Makes mmengine's Runner of a training of two steps."""
    monkeypatch.chdir(tmp_path)

    def runner(values=(1.0, 1.0), kind=MMENGINE, **options):
        dataset = [{"inputs": torch.tensor([value])} for value in values]
        loader = dict(batch_size=1, num_workers=0, sampler=dict(type="DefaultSampler", shuffle=False), dataset=dataset)
        return kind(
            Toy(),
            str(tmp_path / "work"),
            train_dataloader=loader,
            train_cfg=dict(by_epoch=False, max_iters=2),
            optim_wrapper=dict(optimizer=dict(type="SGD", lr=0.1), **options.pop("wrapper", {})),
            experiment_name=str(tmp_path),
            cfg=Config(options.pop("cfg", {"some": 1}), filename=str(tmp_path / "mine.py")),
            **options,
        )

    (tmp_path / "mine.py").write_text("some = 1\n")
    return runner


def weight(runner):
    return runner.model.layer.weight.item()


def dump_config(make):
    """The constructor writes a config into the work folder, which may still be another training's."""
    make()
    assert Path("work/mine.py").is_file()


def build_logger(make):
    """Names that are not UTF-8 end a run, and the console shows all that the log has."""
    handlers = make().logger.handlers
    (file,) = [handler for handler in handlers if isinstance(handler, logging.FileHandler)]
    assert file.stream.errors == "strict"
    record = logging.LogRecord("mmengine", logging.INFO, "", 0, "System environment:", (), None)
    assert all(handler.filter(record) for handler in handlers)


def wrap_model(make):
    """SyncBN stays in a model of several processes on CPUs, where torch has none."""
    runner = make(cfg={"model_wrapper_cfg": None})
    runner._distributed = True
    runner.model.layer = torch.nn.SyncBatchNorm(1)
    with pytest.raises((KeyError, ValueError, RuntimeError)):
        MMENGINE.wrap_model(runner, None, runner.model)  # asks for a GPU, or a process group
    assert isinstance(runner.model.layer, torch.nn.SyncBatchNorm)


def build_dataloader(make):
    """Workers do not know whether their parent lives."""
    loader = MMENGINE.build_dataloader(make()._train_dataloader, seed=0)
    assert loader.worker_init_fn.func.__module__.startswith("mmengine")


def build_evaluator(make):
    """Results of processes meet in a folder of the current one."""
    (metric,) = make().build_evaluator(Evaluator(Perfect())).metrics
    assert (metric.collect_device, metric.collect_dir) == ("cpu", None)


def scale_lr(make):
    """A step counts only the images of one iteration, and the log has the old rate."""
    runner = make(wrapper={"accumulative_counts": 2, "paramwise_cfg": {"bias_lr_mult": 2.0}})
    wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
    runner.scale_lr(wrapper, {"enable": True, "base_batch_size": 2})
    assert wrapper.optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    assert wrapper.base_param_settings["lr"] == pytest.approx(0.1)


def register_hooks(make):
    """A step is made from gradients that are not finite; early stopping forgets what it counted."""
    runner = make(values=(1.0, np.nan))
    runner.train()
    assert np.isnan(weight(runner))
    assert not hasattr(EarlyStoppingHook, "state_dict")


def train(make):
    """Costs of a matching that are not finite are SciPy's error, by its text."""
    for costs, text in (([[np.nan]], COSTS_NOT_FINITE[0]), ([[np.inf]], COSTS_NOT_FINITE[1])):
        with pytest.raises(ValueError, match=text):
            linear_sum_assignment(costs)


def save_checkpoint(make):
    """Gradients that accumulate are in no checkpoint; and the main process alone saves."""
    runner = make(wrapper={"accumulative_counts": 2})
    runner.train()
    assert not any("grad" in key for key in runner.optim_wrapper.state_dict())
    assert MMENGINE.save_checkpoint.__wrapped__  # by a decorator, which shards leave out


def resume(make):
    """Paths in the message hub refer to the folder that was copied."""
    hub = MessageHub.get_instance("resumed")
    hub.load_state_dict({"runtime_info": {"last_ckpt": "/old/iter_2.pth"}, "log_scalars": {}, "resumed_keys": {}})
    assert hub.get_info("last_ckpt") == "/old/iter_2.pth"


REPAIRED = (
    *(dump_config, build_logger, wrap_model, build_dataloader, build_evaluator, scale_lr, register_hooks, train),
    *(save_checkpoint, resume),
)


def test_every_override_is_still_needed():
    overridden = {name for name in vars(Runner) if not name.startswith("_") and hasattr(MMENGINE, name)}
    assert overridden == {repaired.__name__ for repaired in REPAIRED}


@pytest.mark.parametrize("repaired", REPAIRED)
def test_mmengine_still_needs(repaired, make):
    repaired(make)
