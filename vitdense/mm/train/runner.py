"""mmengine's runner, which loses nothing: steps, checkpoints and stops of a training are guarded in one place."""

import logging
import math
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import mmengine.runner
import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import all_reduce, barrier, get_rank, is_distributed, is_main_process
from mmengine.evaluator import Evaluator
from mmengine.hooks import CheckpointHook, EarlyStoppingHook, EMAHook, Hook
from mmengine.logging.logger import MMLogger
from mmengine.model import revert_sync_batchnorm
from mmengine.optim import OptimWrapper
from mmengine.runner import EpochBasedTrainLoop
from torch import Tensor, nn
from torch.utils.data import DataLoader

import vitdense
from vitdense.checkpoint.convert import write_torch
from vitdense.checkpoint.errors import CheckpointNotFoundError
from vitdense.files import remove
from vitdense.mm.checkpoints import REST, SCRATCH, read_checkpoint, read_parts
from vitdense.mm.checks import dry_step
from vitdense.mm.config.build import explained
from vitdense.mm.config.files import named_files, own_modules
from vitdense.mm.console import for_console, result_commands
from vitdense.mm.data.continued import ContinuedLoader
from vitdense.mm.data.seeded import seed_everything
from vitdense.mm.data.transforms import seed_steps
from vitdense.mm.errors import ConfigError, join_some
from vitdense.mm.guard import unwrapped
from vitdense.mm.processes import StopSignal, handling_stops, mean_of_processes, start_worker
from vitdense.mm.train.resume import check_steps, go_on, place_in, stay_in, take_raw_weights
from vitdense.mm.train.shard import is_finite, save_parts, shard
from vitdense.mm.work_folder import WorkFolder

AFTER = ("after_train_iter", "after_train_epoch", "after_val_epoch")  # calls after which mmengine saves
OF_STOPPING = ("wait_count", "best_score")  # the state of mmengine's early stopping, which has no `state_dict`
# Of SciPy, to which mmdet and we give the costs of queries and objects.
COSTS_NOT_FINITE = ("matrix contains invalid numeric entries", "cost matrix is infeasible")


class StepError(ConfigError):
    """A step of a training that would have made the weights NaN or infinite. It was not made."""


class Runner(mmengine.runner.Runner):
    """As mmengine's, and:

    - no optimizer step is made from gradients, or costs of matching, that are not finite, and no checkpoint is saved,
      or lets an older one go, with weights or a loss that are not: `StepError`;
    - the signals `STOPS` save a checkpoint after the iteration, or within a validation: `StopSignal`;
    - resuming goes on within an epoch, or with the validation that was left out;
    - the state of early stopping, and of every hook with `state_dict` and `load_state_dict`, is saved and resumed;
    - a dry step precedes the first iteration;
    - several processes need no GPU;
    - records that users cannot act on go to the log file, and not to the console.
    """

    batch: Any = None  # of the iteration that runs
    in_step: bool = False  # between the hooks before and after an iteration
    in_validation: bool = False  # of a training: its images or its metrics
    validated: int | None = None  # iterations before the last validation
    shared_steps: int = 0  # of a validation, in all processes
    received: int = 0  # signal
    handlers: ExitStack  # of signals
    place: dict | None = None  # of the checkpoint that a training resumes from, see `Place`
    epoch_begin: tuple[int, int] = 0, 0  # the epoch that runs, and its first iteration
    kept: Config | None = None  # of a training that takes the work folder: the config that is written there
    overwrites: bool = False  # whether it moves another training aside
    began: bool = False  # whether the folder is its own: after the first step, before the first save

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with explained(kwargs.get("cfg") or Config()):
            super().__init__(*args, **kwargs)

    def dump_config(self) -> None:
        """Nothing: mmengine's constructor calls it, and the work folder may be that of another training still."""

    def _begin(self) -> None:
        """Make the work folder that of this training; until then it has its log alone."""
        if self.began or self.kept is None:
            return
        self.began = True
        if is_main_process():
            folder, modules = WorkFolder(self.work_dir), own_modules(self.kept)
            if self.overwrites and (aside := folder.move_aside(named_files(self.kept), self.log_dir, modules)):
                self.logger.info(f"--overwrite: the training that was in {folder.path} is now in {aside}")
            folder.write_config(self.kept, modules)

    def build_logger(self, *args: Any, **kwargs: Any) -> MMLogger:
        """As in mmengine."""
        logger = super().build_logger(*args, **kwargs)
        for handler in logger.handlers:
            if type(handler) is logging.StreamHandler:  # the log file is a subclass
                handler.addFilter(for_console)
            elif isinstance(handler, logging.FileHandler):  # whatever the locale, and names of files are bytes
                handler.stream.reconfigure(encoding="utf-8", errors="backslashreplace")
        return logger

    def wrap_model(self, model_wrapper_cfg: dict | None, model: nn.Module) -> nn.Module:
        """As in mmengine, on CPUs without SyncBN, which torch has for GPUs only.

        With `shard` in the config the model stays as it is until it is loaded.
        """
        on_cpus = self.distributed and get_device() == "cpu"
        if on_cpus and any(isinstance(module, nn.SyncBatchNorm) for module in model.modules()):
            self.logger.warning("SyncBN needs GPUs: on CPUs, every process normalises by its own images")
            model = revert_sync_batchnorm(model)
        return model if self.cfg.get("shard") else super().wrap_model(model_wrapper_cfg, model)

    @staticmethod
    def build_dataloader(*args: Any, **kwargs: Any) -> DataLoader:
        """As in mmengine. Workers end with this process, even if this is killed."""
        loader = mmengine.runner.Runner.build_dataloader(*args, **kwargs)
        loader.worker_init_fn = partial(start_worker, loader.worker_init_fn)
        seed_steps(loader.dataset)
        return loader

    def build_evaluator(self, evaluator: Any) -> Evaluator:
        """As in mmengine. Processes exchange results in the work folder, which they share, not in the current one."""
        built = super().build_evaluator(evaluator)
        for metric in built.metrics:
            if metric.collect_device == "cpu" and metric.collect_dir is None:
                metric.collect_dir = str(Path(self.work_dir, ".collected"))
        return built

    def _guard_steps(self) -> None:
        """Check every step of the optimizer: under AMP, those that the scaler lets pass. With `shard`, every process
        keeps its part from here on."""
        if not isinstance(self.optim_wrapper, OptimWrapper):
            return  # several are a project's own
        self.optim_wrapper.optimizer.register_step_pre_hook(self._check_gradients)
        if self.cfg.get("shard"):
            shard(self.model, self.optim_wrapper.optimizer)
            for hook in self.hooks:
                if isinstance(hook, EMAHook):
                    average = hook.ema_model
                    shard(average.module)
                    of = average.module.state_dict() if average.update_buffers else average.module.named_parameters()
                    average.avg_parameters = dict(of)

    def scale_lr(self, optim_wrapper: OptimWrapper, auto_scale_lr: dict | None = None) -> None:
        """As in mmengine, by the images of a step of the optimizer, which are those of all iterations that accumulate;
        and the rate that is logged as ``base_lr`` too."""
        if auto_scale_lr and "base_batch_size" in auto_scale_lr:
            auto_scale_lr = {**auto_scale_lr, "base_batch_size": auto_scale_lr["base_batch_size"] / self.accumulated}
        groups = optim_wrapper.optimizer.param_groups
        before = max(group["lr"] for group in groups)
        super().scale_lr(optim_wrapper, auto_scale_lr)
        if before and (logged := getattr(optim_wrapper, "base_param_settings", None)):
            logged["lr"] *= max(group["lr"] for group in groups) / before

    def _check_gradients(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Refuse the step of gradients that are not finite. After DDP's mean, all processes find the same.

        The norm is that of clipping, which has just been computed and logged, or is computed here.
        """
        parameters = (x for group in optimizer.param_groups for x in group["params"])
        gradients = [x.grad for x in parameters if x.grad is not None]
        wrapper = self.optim_wrapper
        if not gradients:
            return
        if (
            wrapper.clip_grad_kwargs
            and wrapper.clip_func is torch.nn.utils.clip_grad_norm_
            and not self.cfg.get("shard")
        ):
            finite = math.isfinite(self.message_hub.get_scalar(f"train/{wrapper.grad_name}").current())
        else:
            finite = is_finite(torch.nn.utils.get_total_norm(gradients))
        if not finite:
            self._refuse("the gradients are not finite")

    @property
    def accumulated(self) -> int:
        """Iterations of a step of the optimizer."""
        return getattr(self.optim_wrapper, "_accumulative_counts", 1)

    def _refuse(self, reason: str, has_losses: bool = True) -> None:
        """Raise after a look at the losses of the iteration once more."""
        model = unwrapped(self.model)
        seed_everything(self.seed, get_rank(), self.iter)  # as ReproducibleHook
        with torch.no_grad():
            losses = model(**model.data_preprocessor(self.batch, True), mode="loss") if has_losses else {}
            values = model.parse_losses(losses)[1] if losses else {}
        again = "" if all(is_finite(x) for x in model.parameters()) else "The weights were not finite before it. "
        names = [getattr(sample, "img_path", "?") for sample in self.batch.get("data_samples") or ()]
        listed = ", ".join(f"{name} {float(value):.4g}" for name, value in values.items())
        raise StepError(
            f"iteration {self.made}: {reason}, so the step is not made; checkpoints are as they were. "
            f"Losses: {listed or 'none, they need a matching'}. Images: {join_some(names)}. {again}Most often the "
            f"learning rate is too high, or gradients are not clipped (optim_wrapper.clip_grad.max_norm)"
        )

    @property
    def made(self) -> int:
        """Iterations that were made. mmengine counts one after its hooks."""
        return self.iter + self.in_step

    def call_hook(self, fn_name: str, **kwargs: Any) -> None:
        """As in mmengine, with the guards around an iteration and a validation."""
        if fn_name == "before_train":
            self._guard_steps()
            self._dry_step()
        elif fn_name == "before_train_iter":
            self.batch, self.in_step = kwargs.get("data_batch"), True
        elif fn_name == "after_train_iter" and is_distributed():
            kwargs["outputs"] = mean_of_processes(kwargs["outputs"])
        elif fn_name == "before_val":
            self._stop_if_asked()
        elif fn_name == "after_val_epoch":
            self.in_validation, self.validated = False, self.iter
        elif fn_name == "before_train_epoch":
            self.epoch_begin = self.epoch, self.iter - getattr(self.train_loop.dataloader, "seen", 0)
        elif fn_name == "after_load_checkpoint" and self._resume:
            self._load_states(kwargs["checkpoint"])
        elif fn_name == "before_save_checkpoint":
            self._save_states(kwargs["checkpoint"])
        if fn_name in AFTER and self._saves(fn_name):
            self._check_finite()
        if fn_name == "after_train_iter" and self.made % self.accumulated == 0:
            self._begin()
        super().call_hook(fn_name, **kwargs)
        if fn_name == "before_train":
            self.handlers.enter_context(handling_stops(self._receive))  # before it, nothing is to be saved
            if self._resume and self._must_validate():
                self.logger.info(f"the validation after iteration {self.iter}, which the checkpoint precedes")
                self.val_loop.run()
        elif fn_name == "before_save_checkpoint" and self.cfg.get("shard"):
            saved = kwargs["checkpoint"]  # with what hooks added, such as an average of the weights
            saved.update(save_parts(saved, self.parts))
        elif fn_name == "after_train_iter":
            if self.made % self.accumulated == 0:  # else a step is not complete, and its gradients would be lost
                self._stop_if_asked()
            self.in_step = False
        elif fn_name == "before_val_epoch":
            self.in_validation = True
        elif fn_name == "after_train_epoch" and isinstance(loader := self.train_dataloader, ContinuedLoader):
            self.train_loop.dataloader = loader.loader  # whose workers hooks restart, to switch the pipeline
        elif fn_name == "after_val_iter":
            if kwargs["batch_idx"] in range(0, self.shared_steps, 10):  # processes wait for each other
                self._stop_if_asked()
        elif fn_name == "after_val":
            self._stop_if_asked()

    def _deciding(self) -> Iterator[tuple[str, Hook]]:
        """Hooks that have a state, with a name that a checkpoint gives it: class and number."""
        counts: Counter[str] = Counter()
        for hook in self.hooks:
            if hasattr(hook, "state_dict") or isinstance(hook, EarlyStoppingHook):
                kind = type(hook).__name__
                yield f"{kind}_{counts[kind]}", hook
                counts[kind] += 1

    def _save_states(self, checkpoint: dict) -> None:
        meta = checkpoint["meta"]
        meta |= {"validated": self.validated, "vitdense_version": vitdense.__version__}
        if isinstance(self.train_loop, EpochBasedTrainLoop):
            epoch, begin = self.epoch_begin
            meta["place"] = place_in(self.train_loop, meta["iter"] - begin if meta["epoch"] == epoch else 0)._asdict()
        checkpoint["hooks"] = {
            name: hook.state_dict() if hasattr(hook, "state_dict") else {key: getattr(hook, key) for key in OF_STOPPING}
            for name, hook in self._deciding()
        }

    def _load_states(self, checkpoint: dict) -> None:
        check_steps(self, checkpoint)
        if take_raw_weights(self, checkpoint):
            self.logger.warning("resume: without EMAHook, so from the weights that it averaged, not their average")
        self.place = checkpoint["meta"].get("place")
        self.validated = checkpoint["meta"].get("validated", checkpoint["meta"]["iter"])  # of an older version
        states = checkpoint.get("hooks", {})
        for name, hook in self._deciding():
            if name in states and hasattr(hook, "load_state_dict"):
                hook.load_state_dict(states[name])
            elif name in states:
                vars(hook).update(states[name])

    def _must_validate(self) -> bool:
        """Whether a training that resumes begins with a validation, by mmengine's own rule after a step or an epoch."""
        loop = self.train_loop
        by_epoch = isinstance(loop, EpochBasedTrainLoop)
        if self._val_loop is None or not self.iter or self.validated == self.iter:
            return False
        if by_epoch and isinstance(loop.dataloader, ContinuedLoader):
            return False
        loop._decide_current_val_interval()
        now, end = (loop.epoch, loop.max_epochs) if by_epoch else (loop.iter, loop.max_iters)
        return now >= loop.val_begin and (now % loop.val_interval == 0 or now == end)

    def _dry_step(self) -> None:
        """See `vitdense.mm.checks.dry_step`."""
        try:
            for warning in dry_step.train(self.model, self.train_dataloader, self.optim_wrapper):
                self.logger.warning(warning)
            if self.val_loop is not None:
                dry_step.validate(self.model, self.val_dataloader, self.val_evaluator, self.val_loop.fp16)
        except ConfigError as error:
            self.logger.debug("the dry step failed", exc_info=error.__cause__)
            raise

    def _saves(self, fn_name: str) -> bool:
        """Whether a CheckpointHook saves in this call, or may."""
        if fn_name != "after_train_iter":
            return True
        hooks = [hook for hook in self.hooks if isinstance(hook, CheckpointHook) and not hook.by_epoch]
        return any(h.every_n_train_iters(self, h.interval, h.save_begin) or h.is_last_train_iter(self) for h in hooks)

    def _check_finite(self) -> None:
        """Before a checkpoint: mmengine removes an older one, or the best, before it saves."""
        model = unwrapped(self.model)
        wrong = [name for name, x in model.state_dict().items() if isinstance(x, Tensor) and not is_finite(x)]
        loss = self.message_hub.log_scalars.get("train/loss")
        if wrong or (loss is not None and not math.isfinite(loss.current())):
            raise StepError(
                f"iteration {self.made}: not finite: {join_some(wrong or ['the loss'])}; so no checkpoint is "
                f"saved, and the older ones stay. Resume from one of them, with a smaller learning rate"
            )

    def _stop_if_asked(self) -> None:
        """End after a signal to any of the processes, which it reaches in different iterations."""
        if is_distributed():
            steps = len(self.val_dataloader) if self._val_loop else 0
            flags = torch.tensor([self.received, -steps], device=get_device())
            all_reduce(flags, "max")
            self.received, self.shared_steps = int(flags[0]), -int(flags[1])
        if self.received and self._train_loop is not None:
            self._stop()

    def _stop(self) -> None:
        """Save, as mmengine's CheckpointHook would, and end."""
        if self.in_validation:
            self.in_validation = False
            for hook in self.hooks:
                if isinstance(hook, EMAHook):
                    hook.after_val_epoch(self)  # the model has its own weights again
        name = f"iter_{self.made}.pth"
        meta = {"epoch": self.epoch, "iter": self.made}
        self.save_checkpoint(self.work_dir, name, meta=meta, backend_args={"backend": "vitdense.atomic"})
        if get_rank() == 0:
            WorkFolder(self.work_dir).note(name)
        text = f"stopped by {signal.Signals(self.received).name} after iteration {self.made}"
        raise StopSignal(f"{text}; --resume goes on from {name}", self.received)

    def train(self) -> nn.Module:
        """As in mmengine; what ends it says how to go on."""
        with explained(self.cfg), self._saying_how_to_go_on(), ExitStack() as self.handlers:
            try:
                trained = super().train()
            except ValueError as error:
                if not self.in_step or str(error) not in COSTS_NOT_FINITE:
                    raise
                self._refuse("the costs of matching predictions and objects are not finite", has_losses=False)
            if self.cfg.get("shard"):
                self._save_whole()
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
        except (CheckpointNotFoundError, StepError):  # of the weights to start from; says itself what is safe
            raise
        except ConfigError as error:
            if not self.began:
                raise
            raise ConfigError(f"{error}; {self._further()}") from error
        except (OSError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
                raise
            reason = f"iteration {self.iter}: {str(error).splitlines()[-1]}"
            if isinstance(error, RuntimeError):  # of torch, for a process that the system ended
                reason += (
                    ". Memory may have been short: give fewer workers (train_dataloader.num_workers) or a larger "
                    "/dev/shm"
                )
            raise ConfigError(f"{reason}; {self._further()}") from error

    def _further(self) -> str:
        latest = WorkFolder(self.work_dir).latest
        return f"--resume goes on from {latest.name}" if latest else "no checkpoint was saved yet"

    def _save_whole(self) -> None:
        """The weights of the last checkpoint, which is in parts, in one ordinary file."""
        if is_main_process():
            folder = WorkFolder(self.work_dir)
            rest = read_checkpoint(str(folder.latest / REST))
            needed = {key: rest[key] for key in ("meta", "state_dict", "parts")}
            write_torch(read_parts(folder.latest, needed), folder.weights)
            self.logger.info(f"the weights, in one file: {folder.weights}")

    def _receive(self, number: int, frame: Any) -> None:
        self.received = number
        if self.in_validation and not is_distributed():  # else others would wait for this one
            self._stop()

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """As in mmengine."""
        if part := self.made % self.accumulated:  # at the end of an epoch
            self.logger.warning(
                f"the gradients of {part} of {self.accumulated} accumulated iterations are not in the checkpoint: a "
                f"run that resumes from it differs by them"
            )
        self._begin()
        self._save(*args, **kwargs)

    def _save(self, out_dir: str, filename: str, *args: Any, **kwargs: Any) -> None:
        if not self.cfg.get("shard"):
            super().save_checkpoint(out_dir, filename, *args, **kwargs)
            return
        # All processes write their parts, see `call_hook`, and the main one the rest, into a folder that then appears.
        self.parts, folder = Path(out_dir, SCRATCH), Path(out_dir, filename)
        if is_main_process():
            remove(self.parts)
            self.parts.mkdir(parents=True)
        barrier()
        backend = {"backend_args": {"backend": "vitdense.atomic" if is_main_process() else "vitdense.nowhere"}}
        super().save_checkpoint.__wrapped__(self, str(self.parts), REST, *args, **{**kwargs, **backend})
        if is_main_process():
            old = Path(out_dir, f"{SCRATCH}.old")  # removing a folder takes a while, in which a kill would lose both
            if folder.exists():
                folder.rename(old)
            self.parts.rename(folder)
            remove(old)
        barrier()

    def resume(self, *args: Any, **kwargs: Any) -> None:
        """As in mmengine; within an epoch, without the images that it has seen.

        Raises:
            ConfigError: See `check_steps` and `go_on`.
        """
        if self.cfg.get("shard"):
            kwargs["map_location"] = "cpu"  # no device has room for all
        super().resume(*args, **kwargs)
        stay_in(Path(self.work_dir), self.message_hub)
        if isinstance(self.train_loop, EpochBasedTrainLoop):
            go_on(self.train_loop, self.place)
            self.epoch_begin = self.epoch, self.iter - getattr(self.train_loop.dataloader, "seen", 0)
