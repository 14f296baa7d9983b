"""Training and testing from a config, as the commands call them."""

import copy
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mmengine.config import Config
from mmengine.device import get_device
from mmengine.logging import print_log
from mmengine.utils import get_object_from_string

from vitdense.mm.checkpoints import install_loader
from vitdense.mm.checks import check
from vitdense.mm.config.base import Asked, explained, run_passes
from vitdense.mm.config.passes import STARTING, TESTING, TRAINING, built
from vitdense.mm.errors import ConfigError
from vitdense.mm.precision import Inference
from vitdense.mm.processes import connect
from vitdense.mm.train.runner import Runner
from vitdense.mm.work_folder import WorkFolder, find_checkpoint
from vitdense.ops import ops_in_use
from vitdense.seams import call


def prepare_training(cfg: Config, **options: Any) -> Config:
    """Connect the processes, write options (attributes of `Asked` by name) into the config of a training, and check it.

    `cfg` is then the config that runs. Returned is the config for the work folder, which can start the training again.
    """
    asked = Asked(check=check, **options)
    resume = asked.resume
    connect(cfg.launcher, cfg.get("env_cfg", {}))
    if cfg.pop("resume", False) and resume is None:  # mmengine's key
        resume = cfg.get("load_from") or "auto"
    if asked.overwrite and resume is not None:
        raise ConfigError("--overwrite: got --resume too; one starts anew, the other goes on")
    if resume == "auto":
        folder = WorkFolder(cfg.work_dir)
        resume = folder.path if folder.latest else None
        if resume is None and folder.checkpoints:
            raise ConfigError(f"--resume {folder.path}: {folder.lack}; --overwrite starts anew")
        if resume is None:
            print_log(f"no checkpoint to resume from in {cfg.work_dir}: training from scratch", level=logging.WARNING)
    asked = replace(asked, resume=None if resume is None else find_checkpoint(resume))
    run_passes(TRAINING, cfg, asked)
    kept = cfg if asked.resume is None else copy.deepcopy(cfg)
    run_passes(STARTING, cfg, asked)
    return kept


def train(cfg: Config, overwrite: bool = False, **options: Any) -> None:
    """Train and validate; for the options see `prepare_training`.

    Args:
        cfg: From `load_config`.
        overwrite: Start anew in a work folder with checkpoints. After the first step, the earlier training is moved
            into a sub-folder; other files stay.
    """
    kept = prepare_training(cfg, overwrite=bool(overwrite), **options)  # None of a command: not given
    with WorkFolder(cfg.work_dir).hold():
        name = cfg.get("runner_type", "Runner")  # mmengine's key; ours replaces its "Runner"
        kind = Runner if name == "Runner" else get_object_from_string(name)
        if kind is None or not issubclass(kind, Runner):
            raise ConfigError(f"runner_type: got {name}, expected the dotted path of a class that is a {Runner}")
        runner = _runner(cfg, kind=kind)
        runner.kept, runner.overwrites = kept, overwrite
        runner.train()


def test(  # no test of pytest
    cfg: Config,
    checkpoint: str,
    inference: Inference | None = None,  # noqa: PT028
    tell: Callable[[dict[str, float]], None] = lambda metrics: None,  # noqa: PT028
    **options: Any,
) -> dict[str, float]:
    """Evaluate a checkpoint on the test data; returns the metrics.

    Args:
        cfg: From `load_config`.
        checkpoint: See `find_checkpoint`; or a file of ``vitdense export --to onnx``, see `ExportedModel`.
        inference: Options of prediction, but `device` is mmengine's choice and `score_thr` the config's.
        tell: Gets the metrics before extensions do. A metric is NaN if there is nothing to find, such as large objects.
        options: Attributes of `Asked` by name, such as `tta`.
    """
    connect(cfg.launcher, cfg.get("env_cfg", {}))
    inference = Inference(get_device()) if inference is None else replace(inference, device=get_device())
    asked = Asked(check=check, checkpoint=find_checkpoint(checkpoint, measured=True), inference=inference, **options)
    run_passes(TESTING, cfg, asked)
    WorkFolder(cfg.work_dir).make()
    runner = _runner(cfg, asked)
    inference.tune_cpu()
    if asked.args is not None:
        call("test", "before", asked.args, runner=runner)
    with explained(cfg), inference.computing():
        metrics = runner.test()
    metrics = {name: math.nan if value == -1 else float(value) for name, value in metrics.items()}  # COCO's -1
    if nothing := [name for name, value in metrics.items() if math.isnan(value)]:
        said = f"no value, for the test data have nothing of it to find: {', '.join(nothing)}"
        print_log(said, "current", logging.WARNING)
    tell(metrics)
    if asked.args is not None:
        call("test", "after", asked.args, metrics=metrics, runner=runner)
    return metrics


def _runner(cfg: Config, asked: Asked = Asked(), kind: type[Runner] = Runner) -> Runner:  # noqa: B008 -- frozen
    install_loader()  # an ExactLoadHook of the config installs it again, with its own options
    with explained(cfg):
        runner = kind.from_cfg(built(cfg, asked))
    runner.cfg = copy.deepcopy(cfg)
    runner.logger.info(f"environment, config and hooks are in the log file {runner.logger.log_file}")
    runner.logger.info("mmcv ops in use: {} ({})".format(*ops_in_use()))
    return runner
