"""mmengine's runner with guards for steps, checkpoints and stops of a training."""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import mmengine.runner
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import is_main_process
from mmengine.evaluator import Evaluator
from mmengine.logging.logger import MMLogger
from mmengine.model import revert_sync_batchnorm
from mmengine.optim import OptimWrapper
from mmengine.runner import EpochBasedTrainLoop
from torch import Tensor, nn
from torch.utils.data import DataLoader

from vitdense.checkpoint.errors import CheckpointNotFoundError
from vitdense.mm.config.base import explained
from vitdense.mm.config.files import named_files, own_modules
from vitdense.mm.console import result_commands
from vitdense.mm.data.transforms import seed_steps
from vitdense.mm.errors import ConfigError
from vitdense.mm.processes import start_worker
from vitdense.mm.train.guards import GUARDS, StepError, refuse
from vitdense.mm.train.resume import go_on, stay_in
from vitdense.mm.work_folder import CHECKPOINT, WorkFolder

# Errors of torch if another process has ended, by a part of their text, and what to do.
ENDED = "Another process has ended; its last lines say why"
OTHERS_ENDED = {
    "DataLoader worker": "Memory may be short: give fewer workers (train_dataloader.num_workers) or a larger /dev/shm",
    **{"Connection closed by peer": ENDED, "Connection reset by peer": ENDED},
}
# Errors of SciPy for the costs of queries and objects, from mmdet and ours.
COSTS_NOT_FINITE = ("matrix contains invalid numeric entries", "cost matrix is infeasible")
# Records only for the log file, by text in their first lines.
LOG_FILE_ONLY = (
    *("System environment:", "Config:\n", "Hooks will be executed in the following order"),
    *('"FileClient" will be deprecated', '"HardDiskBackend" is the alias', "SyncBatchNorm (SyncBN) layers"),
    "The prefix is not set in metric class",
)


class Runner(mmengine.runner.Runner):
    """mmengine's runner with the hooks `GUARDS`; a training can resume within an epoch or with a missed validation."""

    batch: Any = None  # of the current iteration
    in_step: bool = False  # between the hooks before and after an iteration
    in_validation: bool = False  # during a validation in a training, metrics included
    validated: int | None = None  # iterations before the last validation
    saved: int | None = None  # iterations before the last checkpoint
    ending: ExitStack  # closed at the end of a training
    place: dict | None = None  # `Place` in the checkpoint to resume from
    epoch_begin: tuple[int, int] = 0, 0  # the current epoch, and its first iteration
    kept: Config | None = None  # the config to write into the work folder
    overwrites: bool = False  # whether to move an earlier training aside
    began: bool = False  # whether the work folder was taken: after the first step, before the first save

    def dump_config(self) -> None:
        """Write nothing. mmengine's constructor calls this, and the work folder may still be another training's."""

    def begin(self) -> None:
        """Take the work folder for this training; until then only the log is written there."""
        if self.began or self.kept is None:
            return
        self.began = True
        if is_main_process():
            folder, modules = WorkFolder(self.work_dir), own_modules(self.kept)
            if self.overwrites and (aside := folder.move_aside(named_files(self.kept), self.log_dir, modules)):
                self.logger.info(f"--overwrite: the training that was in {folder.path} is now in {aside}")
            folder.write_config(self.kept, modules)

    def build_logger(self, *args: Any, **kwargs: Any) -> MMLogger:
        logger = super().build_logger(*args, **kwargs)
        for handler in logger.handlers:
            if type(handler) is logging.StreamHandler:  # the log file is a subclass
                handler.addFilter(lambda record: not any(x in record.getMessage()[:200] for x in LOG_FILE_ONLY))
            elif isinstance(handler, logging.FileHandler):  # for any locale, and file names that are not UTF-8
                handler.stream.reconfigure(encoding="utf-8", errors="backslashreplace")
        return logger

    def wrap_model(self, model_wrapper_cfg: dict | None, model: nn.Module) -> nn.Module:
        return super().wrap_model(model_wrapper_cfg, self.without_sync_bn(model))

    def without_sync_bn(self, model: nn.Module) -> nn.Module:
        """The model; on CPUs without SyncBN, which torch has only for GPUs."""
        on_cpus = self.distributed and get_device() == "cpu"
        if on_cpus and any(isinstance(module, nn.SyncBatchNorm) for module in model.modules()):
            self.logger.warning("SyncBN needs GPUs: on CPUs, every process normalises by its own images")
            return revert_sync_batchnorm(model)
        return model

    @staticmethod
    def build_dataloader(*args: Any, **kwargs: Any) -> DataLoader:
        """As in mmengine, with workers that ignore signals to all processes."""
        loader = mmengine.runner.Runner.build_dataloader(*args, **kwargs)
        loader.worker_init_fn = partial(start_worker, loader.worker_init_fn)
        seed_steps(loader.dataset, getattr(loader.batch_sampler, "sampler", None))
        return loader

    def build_evaluator(self, evaluator: Any) -> Evaluator:
        """As in mmengine, but processes exchange results in the shared work folder, not in the current folder."""
        built = super().build_evaluator(evaluator)
        for metric in built.metrics:
            if metric.collect_device == "cpu" and metric.collect_dir is None:
                metric.collect_dir = str(Path(self.work_dir, ".collected"))
        return built

    def register_hooks(self, default_hooks: dict | None = None, custom_hooks: Sequence | None = None) -> None:
        super().register_hooks(default_hooks, custom_hooks)
        for guard in GUARDS:
            self.register_hook(guard())

    def scale_lr(self, optim_wrapper: OptimWrapper, auto_scale_lr: dict | None = None) -> None:
        """As in mmengine, but counts the images of accumulated iterations, and scales the logged ``base_lr``."""
        if auto_scale_lr and "base_batch_size" in auto_scale_lr:
            auto_scale_lr = {**auto_scale_lr, "base_batch_size": auto_scale_lr["base_batch_size"] / self.accumulated}
        groups = optim_wrapper.optimizer.param_groups
        before = max(group["lr"] for group in groups)
        super().scale_lr(optim_wrapper, auto_scale_lr)
        if before and (logged := getattr(optim_wrapper, "base_param_settings", None)):
            logged["lr"] *= max(group["lr"] for group in groups) / before

    def is_finite(self, x: Tensor) -> bool:
        return bool(x.isfinite().all())

    def are_finite(self, gradients: Sequence[Tensor]) -> bool:
        """Whether gradients are finite, by the norm that clipping has just computed and logged."""
        wrapper = self.optim_wrapper
        if wrapper.clip_grad_kwargs and wrapper.clip_func is nn.utils.clip_grad_norm_:
            return math.isfinite(self.message_hub.get_scalar(f"train/{wrapper.grad_name}").current())
        return self.is_finite(nn.utils.get_total_norm(gradients))

    @property
    def accumulated(self) -> int:
        return getattr(self.optim_wrapper, "_accumulative_counts", 1)

    @property
    def made(self) -> int:
        """Iterations made, including the current one, which mmengine counts only after its hooks."""
        return self.iter + self.in_step

    def train(self) -> nn.Module:
        """As in mmengine; errors that end the training say how to resume."""
        with explained(self.cfg), self._saying_how_to_go_on(), ExitStack() as self.ending:
            try:
                trained = super().train()
            except ValueError as error:
                if not self.in_step or str(error) not in COSTS_NOT_FINITE:
                    raise
                refuse(self, "the costs of matching predictions and objects are not finite", has_losses=False)
        if self.began and self.cfg.get("default_scope") in ("mmdet", "mmseg"):
            folder = WorkFolder(self.work_dir)
            lines = "".join(f"\n    {line}" for line in result_commands(str(folder.config_of(self.cfg)), self.work_dir))
            self.logger.info(f"next:{lines}")
        return trained

    @contextmanager
    def _saying_how_to_go_on(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(f"stopped after iteration {self.iter}; {self._further()}") from stop
        except (CheckpointNotFoundError, StepError):  # these say how to go on
            raise
        except ConfigError as error:
            if not self.began:
                raise
            raise ConfigError(f"{error}; {self._further()}") from error
        except (OSError, RuntimeError) as error:
            is_torchs = isinstance(error, RuntimeError)
            what_to_do = [f". {text}" for part, text in OTHERS_ENDED.items() if is_torchs and part in str(error)]
            if is_torchs and not what_to_do:
                raise
            reason = f"iteration {self.iter}: {str(error).splitlines()[-1]}{''.join(what_to_do)}"
            raise ConfigError(f"{reason}; {self._further()}") from error

    def _further(self) -> str:
        latest = WorkFolder(self.work_dir).latest
        return f"--resume goes on from {latest.name}" if latest else "no checkpoint was saved yet"

    def save_checkpoint(self, out_dir: str, filename: str, *args: Any, **kwargs: Any) -> None:
        if part := self.made % self.accumulated:  # at the end of an epoch
            self.logger.warning(
                f"the gradients of {part} of {self.accumulated} accumulated iterations are not in the checkpoint: a "
                f"run that resumes from it differs by them"
            )
        self.begin()
        self.write(out_dir, filename, *args, **kwargs)
        if CHECKPOINT.fullmatch(filename):  # not the best one
            self.saved = self.made

    def write(self, *args: Any, **kwargs: Any) -> None:
        super().save_checkpoint(*args, **kwargs)

    def resume(self, *args: Any, **kwargs: Any) -> None:
        """As in mmengine; within an epoch, skips the images that were used."""
        super().resume(*args, **kwargs)
        stay_in(Path(self.work_dir), self.message_hub)
        if isinstance(self.train_loop, EpochBasedTrainLoop):
            go_on(self.train_loop, self.place)
            self.epoch_begin = self.epoch, self.iter - getattr(self.train_loop.dataloader, "seen", 0)
