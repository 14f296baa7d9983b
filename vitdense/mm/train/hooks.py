"""Hooks: reproducible training steps, exact loading, and the annealing of masked attention."""

import logging
import re
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from mmengine.dist import get_rank, get_world_size, master_only
from mmengine.hooks import Hook
from mmengine.runner import BaseLoop, EpochBasedTrainLoop
from mmengine.utils import ProgressBar

from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.fit import LoadReport
from vitdense.checkpoint.whole_models import fit_whole, load_base
from vitdense.files import atomic_write
from vitdense.layers.mask_attention import mask_probability
from vitdense.mm.checkpoints import RESUMED, check_fields, check_sums, install_loader
from vitdense.mm.config.diff import OF_RESULTS, OF_TRAINING, log_differences
from vitdense.mm.data.classes import classes_of, difference, meta_of
from vitdense.mm.data.seeded import seed_everything
from vitdense.mm.errors import ConfigError, join_some
from vitdense.mm.guard import guard_model, unwrapped
from vitdense.mm.registry import HOOKS

PARTS_OF_A_RUN = ("meta", "message_hub", "optimizer", "param_schedulers", "state_dict")


@HOOKS.register_module()
class ReproducibleHook(Hook):
    """Seed every training step from the seed of the run, the rank and the iteration.

    A resumed run then has the same random numbers as an uninterrupted one: for drop path, sampled RoIs, and, with
    `SeededInfiniteSampler` or `SeededEpochSampler` and `SeedFromSample`, augmentation. This needs
    ``randomness=dict(seed=...)`` and deterministic kernels.
    """

    priority = "VERY_HIGH"

    def before_train_iter(self, runner, batch_idx: int, data_batch=None) -> None:
        seed_everything(runner.seed, get_rank(), runner.iter)

    def before_save_checkpoint(self, runner, checkpoint: dict) -> None:
        checkpoint["meta"]["images_per_step"] = runner.cfg.train_dataloader.batch_size * get_world_size()

    def after_load_checkpoint(self, runner, checkpoint: dict) -> None:
        saved = checkpoint.get("meta", {}).get("images_per_step") if runner._resume else None
        given = saved and runner.cfg.train_dataloader.batch_size * get_world_size()
        if saved != given:
            runner.logger.warning(
                f"images per step, of all processes: {given}, in the checkpoint {saved}; the run leaves out images or "
                f"repeats some, and its learning rate was for {saved}"
            )


def check_whole(checkpoint: Mapping, file: str) -> None:
    """Raise a CheckpointMismatchError unless a file has everything to resume from, undamaged and finite."""
    if absent := [key for key in PARTS_OF_A_RUN if checkpoint.get(key) is None]:
        raise CheckpointMismatchError(
            f"resume: {file} has no {', '.join(absent)}, without which a run does not go on; start a new one from its "
            f"weights: --cfg-options load_from={file}"
        )
    check_sums(file)
    check_fields(checkpoint, file, RESUMED)
    states = checkpoint["optimizer"].get("state", {})
    rows = states.items() if isinstance(states, dict) else [("state", None)]
    if wrong := [i for i, state in rows if not isinstance(state, dict) or not all(map(_is_finite, state.values()))]:
        raise CheckpointMismatchError(
            f"resume: the state of the optimizer in {file} is not finite, for parameters {join_some(wrong)}; use an "
            f"older checkpoint"
        )


def _is_finite(value: object) -> bool:
    return value is None or (
        isinstance(value, (torch.Tensor, int, float)) and bool(torch.as_tensor(value).isfinite().all())
    )


def _check_length(loop: BaseLoop, checkpoint: dict) -> None:
    """Raise if the length of the run has changed: mmengine resumes the checkpoint's schedule regardless."""
    name = "max_epochs" if isinstance(loop, EpochBasedTrainLoop) else "max_iters"
    old, new = checkpoint.get("message_hub", {}).get("runtime_info", {}).get(name), getattr(loop, name)
    if old not in (None, new):
        raise ConfigError(
            f"resume: got {name}={new}, but the checkpoint is of a run with {old}, whose learning-rate schedule would "
            f"go on. Resume with {old}, or start a new run from its weights: --cfg-options load_from=CHECKPOINT"
        )


@HOOKS.register_module()
class ExactLoadHook(Hook):
    """Load a checkpoint (`load_from`, resume, test) exactly or raise, and write a report of what was loaded.

    mmengine only logs missing keys and size mismatches, and continues with random weights. Whole detectors and
    segmentors of mmdet and mmseg load as well: the keys of their backbone are renamed. Reports, also for the backbone's
    `init_cfg`, are in ``load_report.txt`` in the log folder. Once the hook exists, mmengine reads every checkpoint of
    the process without running code in it.

    Args:
        fresh: Regular expressions of parameters that are kept at initialisation, such as
            ``r'roi_head\\..*(fc_cls|fc_reg)\\..*'`` to fine-tune on other classes. The error on loading names the
            expression that is needed.
        allow_pickle: See `read_checkpoint`. Needed to resume a run with custom objects in its message hub.
        base: Weights of the trunk, for a mask transformer's file without them; see `load_base`.
        channels: For a file whose images have other channels; see `vitdense.checkpoint.fit.with_channels`.
    """

    priority = "VERY_HIGH"  # before hooks that copy the checkpoint, such as EMAHook

    def __init__(
        self,
        fresh: Sequence[str] = (),
        allow_pickle: bool = False,
        base: str | None = None,
        channels: str | Sequence[int] | None = None,
    ) -> None:
        if isinstance(fresh, str):
            raise ConfigError(f"fresh of vitdense.ExactLoadHook: got {fresh!r}, expected a list: [{fresh!r}]")
        for pattern in fresh:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ConfigError(f"fresh of vitdense.ExactLoadHook: got {pattern!r}, no regular expression") from error
        self.fresh, self.base, self.channels = tuple(fresh), base, channels
        self.reports: list[LoadReport] = []
        install_loader(allow_pickle)

    def after_load_checkpoint(self, runner, checkpoint: dict) -> None:
        if runner._resume:
            check_whole(checkpoint, str(runner._load_from))
            _check_length(runner.train_loop, checkpoint)
            log_differences(checkpoint, runner.cfg, OF_TRAINING)
        elif isinstance(runner._test_loop, BaseLoop):  # so far built only in a test
            log_differences(checkpoint, runner.cfg, OF_RESULTS)
        model = unwrapped(runner.model)  # checkpoints are saved without the TTA wrapper
        self._check_classes(runner, checkpoint)
        source, own = str(runner._load_from or "checkpoint"), model.state_dict()
        load = None if self.base is None else partial(load_base, model, self.base, source)
        state, report = fit_whole(model, checkpoint, self.fresh, source, load, self.channels)
        # After this hook, mmengine loads all of it; it would print what is kept as missing.
        checkpoint["state_dict"] = state | {key: own[key] for key in report.kept_at_init}
        if runner._resume and report.resized:  # the state of the optimizer has the old sizes
            raise CheckpointMismatchError(
                f"resume: {runner._load_from} has other sizes than the model for {join_some(report.resized)}; go on "
                f"with its config, or start a new run from its weights: --cfg-options load_from={runner._load_from}"
            )
        runner.logger.info(f"{type(model).__name__}: {report}")
        self.reports.append(report)

    def _check_classes(self, runner, checkpoint: Mapping) -> None:
        loop = runner._train_loop if isinstance(runner._train_loop, BaseLoop) else runner._test_loop
        data = loop.dataloader.dataset.metainfo if isinstance(loop, BaseLoop) else {}
        for key, saved in (("classes", classes_of(checkpoint)), ("keypoints", meta_of(checkpoint).get("keypoints"))):
            own = data.get(key)
            if None in (saved, own) or self.fresh or len(saved) != len(own):  # the loader compares the sizes
                continue
            if fault := difference(saved, own):
                raise CheckpointMismatchError(f"{runner._load_from or 'checkpoint'}: {fault}")

    @master_only
    def before_train(self, runner) -> None:
        reports = [module.load_report for module in runner.model.modules() if getattr(module, "load_report", None)]
        if reports := [*reports, *self.reports]:
            with atomic_write(Path(runner.log_dir) / "load_report.txt") as scratch:
                text = "\n".join(report.details() for report in reports) + "\n"
                scratch.write_text(text, encoding="utf-8", errors="backslashreplace")  # file names may not be UTF-8

    before_val = before_test = before_train


@HOOKS.register_module()
class GuardModelHook(Hook):
    """Calls `guard_model` in a Runner, ours or one of mm's tools."""

    priority = "VERY_HIGH"  # before hooks that copy the model, such as EMAHook

    def before_run(self, runner) -> None:
        guard_model(runner.model)


@HOOKS.register_module()
class ProgressHook(Hook):
    """Shows a bar on a terminal, in place of the lines of a training below a warning. The log file has all."""

    @master_only
    def before_train(self, runner) -> None:
        self.hushed = []
        if sys.stdout.isatty():
            handlers = runner.logger.handlers
            self.hushed = [one for one in handlers if not isinstance(one, logging.FileHandler)]
            self._log_from(logging.WARNING)
            self.bar = ProgressBar(runner.max_iters - runner.iter, file=sys.stdout)

    @master_only
    def after_train_iter(self, runner, *args, **outputs) -> None:
        if self.hushed:
            self.bar.update()

    @master_only
    def after_train(self, runner) -> None:
        if self.hushed:
            print()
        self._log_from(logging.INFO)

    def _log_from(self, level: int) -> None:
        for handler in self.hushed:
            handler.setLevel(level)


@HOOKS.register_module()
class MaskAnnealingHook(Hook):
    """Phases out masked attention of EoMT and PMT block by block, so that a trained model needs none (section 3.3).

    The probability of masks, `mask_probability`, depends only on the step, so a resumed run continues unchanged.

    Args:
        starts: For every block, the iteration from which masks become less probable.
        ends: For every block, the iteration from which there are none.
    """

    priority = "HIGH"

    def __init__(self, starts: Sequence[int], ends: Sequence[int]) -> None:
        self.starts, self.ends = tuple(starts), tuple(ends)
        if len(starts) != len(ends) or any(start >= end for start, end in zip(starts, ends)):
            raise ConfigError(f"starts, ends: got {starts}, {ends}, expected as many, each end after its start")

    def before_train(self, runner) -> None:
        buffers = dict(runner.model.named_buffers())
        self.buffers = [x for name, x in buffers.items() if name.endswith(".mask_probabilities")]
        if not self.buffers or any(len(x) != len(self.starts) for x in self.buffers):
            raise ConfigError(
                f"vitdense.MaskAnnealingHook: got {len(self.starts)} starts, and heads with "
                f"{[len(x) for x in self.buffers]} blocks; give a start and an end for each block of an EoMT or a PMT"
            )

    def before_train_iter(self, runner, batch_idx: int, data_batch=None) -> None:
        for buffer in self.buffers:
            for i, span in enumerate(zip(self.starts, self.ends)):
                buffer[i] = mask_probability(runner.iter, *span)
