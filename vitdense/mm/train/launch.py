"""Training and testing from a config, as `tools/` call them."""

import copy
import json
import logging
import math
import os
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.logging import print_log

import vitdense
from vitdense.checkpoint.errors import CheckpointNotFoundError
from vitdense.files import sha256_of
from vitdense.mm.checkpoints import REST, install_loader, is_checkpoint
from vitdense.mm.config.base import Asked, run_passes
from vitdense.mm.config.build import explained
from vitdense.mm.config.load import named_files, own_modules
from vitdense.mm.config.passes import STARTING, TESTING, TRAINING, built
from vitdense.mm.console import result_commands
from vitdense.mm.errors import ConfigError
from vitdense.mm.ops import ops_in_use
from vitdense.mm.precision import Inference
from vitdense.mm.processes import agree, end_with_parent, start_on_cpu
from vitdense.mm.train.breakdown import report_test
from vitdense.mm.train.hooks import FirstNotFinite
from vitdense.mm.train.runner import Runner, StepError
from vitdense.mm.work_folder import WorkFolder, find_checkpoint

NOTHING = -1  # COCO's AP of what the truth does not have


def prepare_training(cfg: Config, resume: str | None = None, **options: Any) -> Config:
    """Write the options of a training into its config, which then is what runs, and check it.

    Args:
        cfg: From `load_config`.
        resume: A checkpoint, or ``'auto'`` for the latest one of the work folder, if any.
        options: Of `Asked`. `amp`: data type of automatic mixed precision, one of `precision.AMP_DTYPES`; None:
            float32. `auto_scale_lr`: multiply the learning rate by the total batch size over
            ``auto_scale_lr.base_batch_size``. `fresh`: see `ExactLoadHook`; replaces the config's, and is not for
            `resume`. `shard`: keep parameters, gradients and optimizer states in parts over the processes; see
            `vitdense.mm.train.shard`. `auto_batch_size`: see `set_batch_size`; not for `resume`.

    Returns:
        The config for the work folder: what starts the training anew, also where this one resumes.

    Raises:
        ConfigError: See `check` and `set_batch_size`; or `amp` on a CPU that has it not, see `check_precision`.
        CheckpointNotFoundError: The checkpoint to resume from does not exist.
    """
    if resume == "auto":
        folder = WorkFolder(cfg.work_dir)
        resume = folder.latest
        if resume is None and folder.checkpoints:
            raise ConfigError(f"--resume {folder.path}: {folder.lack}; --overwrite starts anew")
        if resume is None:
            print_log(f"no checkpoint to resume from in {cfg.work_dir}: training from scratch", level=logging.WARNING)
    asked = Asked(resume=None if resume is None else find_checkpoint(resume), **options)
    run_passes(TRAINING, cfg, asked)
    kept = cfg if asked.resume is None else copy.deepcopy(cfg)
    run_passes(STARTING, cfg, asked)
    return kept


def train(cfg: Config, overwrite: bool = False, **options: Any) -> None:
    """Train and validate.

    Args:
        cfg: From `load_config`.
        overwrite: Start anew in a work folder that has checkpoints. After the first step, the training that was in it
            is moved into a folder in it; what our commands did not write, and what the config names, stays.
        options: See `prepare_training`.

    Raises:
        ConfigError: The work folder is in use, cannot be written, or has checkpoints of a training that neither goes
            on nor is to be overwritten, or does both; the processes do not agree; or see `prepare_training`.
        StepError: A step or checkpoint was refused, see `Runner`.
        StopSignal: See `Runner`.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        end_with_parent()
    start_on_cpu(cfg.launcher)
    folder = WorkFolder(cfg.work_dir)
    if cfg.pop("resume", False) and options.get("resume") is None:  # mmengine's way to say it
        options["resume"] = cfg.get("load_from") or "auto"
    if overwrite and options.get("resume") is not None:
        raise ConfigError("--overwrite: got --resume too; one starts anew, the other goes on")
    if folder.checkpoints and options.get("resume") is None and not overwrite:
        raise ConfigError(
            f"{folder.path} has checkpoints of a training, up to {(folder.latest or folder.checkpoints[-1]).name}; "
            f"--resume goes on with it, --overwrite starts anew, --work-dir names another folder"
        )
    folder.check_config(cfg)
    kept = prepare_training(cfg, **options)
    if overwrite:
        named = named_files(cfg)
        folder.check_replaceable(cfg, named)
    with folder.hold(), explained(cfg):
        agree(_facts(cfg))
        runner = _runner(cfg)
        runner.begin = partial(_begin, runner, folder, kept, named if overwrite else None)
        try:
            runner.train()
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(f"stopped after iteration {runner.iter}; {_further(cfg)}") from stop
        except (CheckpointNotFoundError, StepError):  # of the weights to start from; says itself what is safe
            raise
        except ConfigError as error:
            if not runner.iter:
                raise
            raise ConfigError(f"{error}; {_further(cfg)}") from error
        except OSError as error:
            raise ConfigError(f"iteration {runner.iter}: {str(error).splitlines()[-1]}; {_further(cfg)}") from error
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):  # as torch calls a process that the system ended
                raise
            raise ConfigError(
                f"iteration {runner.iter}: {str(error).splitlines()[-1]}. Memory may have been short: give fewer "
                f"workers (train_dataloader.num_workers) or a larger /dev/shm; {_further(cfg)}"
            ) from error
    if cfg.filename and cfg.get("default_scope") in ("mmdet", "mmseg"):
        config = Path(cfg.work_dir, Path(cfg.filename).name)  # with the options of this run
        lines = "".join(f"\n    {line}" for line in result_commands(str(config), cfg.work_dir))
        print_log(f"next:{lines}", logger="current")


def _begin(runner: Runner, folder: WorkFolder, cfg: Config, named: set[Path] | None) -> None:
    """Make the work folder that of a training, whose first step is made; until then it has its log alone."""
    modules = own_modules(cfg)
    if named is not None and (aside := folder.move_aside(named, runner.log_dir, modules)):
        runner.logger.info(f"--overwrite: the training that was in {folder.path} is now in {aside}")
    folder.write_config(cfg, modules)


def replay(cfg: Config, file: str) -> None:
    """Run the step again that a training refused, and say where values stop being finite.

    Args:
        cfg: That of the training.
        file: What the training wrote then.

    Raises:
        ConfigError: Always: the step is refused again, or it is not.
        CheckpointNotFoundError: There is no such file.
    """
    prepare_training(cfg, resume=file)
    cfg.work_dir = str(Path(cfg.work_dir, "replay"))
    with explained(cfg):
        runner = _runner(cfg)
        runner.register_hook(FirstNotFinite(), "LOWEST")
        runner.train()


def _facts(cfg: Config) -> dict[str, str]:
    """What all processes of a training must have in common."""
    versions = f"vitdense {vitdense.__version__}, torch {torch.__version__}"
    config = {key: value for key, value in cfg.to_dict().items() if key not in ("work_dir", "load_from")}
    config = sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()[:12]
    facts = {"checkpoint": "none", "versions": versions, "config": config}
    if (saved := cfg.get("load_from")) and is_checkpoint(Path(saved)):
        file = Path(saved) if Path(saved).is_file() else Path(saved, REST)  # which has the digests of all parts
        facts["checkpoint"] = f"{Path(saved).name} (SHA-256 {sha256_of(file)[:12]})"
    return facts


def _further(cfg: Config) -> str:
    """How to go on after a training that did not end."""
    latest = WorkFolder(cfg.work_dir).latest
    return f"--resume goes on from {latest.name}" if latest else "no checkpoint was saved yet"


def test(  # no test of pytest
    cfg: Config,
    checkpoint: str,
    inference: Inference | None = None,  # noqa: PT028
    tta: bool = False,  # noqa: PT028
    report: Path | None = None,  # noqa: PT028
) -> dict[str, float]:
    """Evaluate a checkpoint on the test data.

    Args:
        cfg: From `load_config`.
        checkpoint: See `find_checkpoint`; or a file of ``vitdense export --to onnx``, see `ExportedModel`.
        inference: How the model predicts. `device` and `score_thr` are those of the test: mmengine's, and the config's.
        tta: Test-time augmentation: ``tta_pipeline`` augments every image, ``tta_model`` merges the predictions.
        report: Folder for what the metrics are made of; see `report_test`.

    Returns:
        The metrics; NaN where the test data have nothing to find, such as no large object for its AP.

    Raises:
        ConfigError: See `check`; or the config has no ``tta_pipeline`` or no ``tta_model`` for `tta`, or no metric for
            `report`, or is not one of a detector for `tiles`; or an exported file is to be augmented, tiled or cast, or
            has other classes.
        CheckpointNotFoundError: There is no such file.
        CheckpointMismatchError: It is not a checkpoint of this model.
    """
    start_on_cpu(cfg.launcher)
    inference = Inference(get_device()) if inference is None else replace(inference, device=get_device())
    asked = Asked(checkpoint=find_checkpoint(checkpoint), tta=tta, inference=inference)
    run_passes(TESTING, cfg, asked)
    WorkFolder(cfg.work_dir).make()
    with explained(cfg):
        runner = _runner(cfg, asked)
        inference.tune_cpu()
        with inference.computing():
            metrics = runner.test() if report is None else report_test(runner, report)
    metrics = {name: float(value) for name, value in metrics.items()}  # mmseg's values are NumPy scalars
    if nothing := [name for name, value in metrics.items() if value == NOTHING or math.isnan(value)]:
        print_log(
            f"no value, for the test data have nothing of it to find: {', '.join(nothing)}", "current", logging.WARNING
        )
    return {name: math.nan if name in nothing else value for name, value in metrics.items()}


def _runner(cfg: Config, asked: Asked | None = None) -> Runner:
    """Build mmengine's runner, and log which ops are in use. Its config, which checkpoints have, is the saved one."""
    install_loader()  # an ExactLoadHook of the config installs it again, with its own options
    runner = Runner.from_cfg(built(cfg, asked or Asked()))
    runner.cfg = copy.deepcopy(cfg)
    runner.logger.info(f"environment, config and hooks are in the log file {runner.logger.log_file}")
    runner.logger.info("mmcv ops in use: {} ({})".format(*ops_in_use()))
    return runner
