"""Hooks of every training: refuse steps that are not finite, and save before a training ends."""

import math
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from mmengine.device import get_device
from mmengine.dist import all_reduce, get_rank, is_distributed, is_main_process
from mmengine.hooks import CheckpointHook, EarlyStoppingHook, EMAHook, Hook
from mmengine.optim import OptimWrapper
from mmengine.runner import EpochBasedTrainLoop
from torch import Tensor

import vitdense
from vitdense.mm.checks import dry_step
from vitdense.mm.data.seeded import seed_everything
from vitdense.mm.data.transforms import parts
from vitdense.mm.errors import ConfigError, join_some
from vitdense.mm.guard import unwrapped
from vitdense.mm.processes import STOPS, StopSignal, handling_stops
from vitdense.mm.train.resume import check_steps, place_in, take_raw_weights
from vitdense.mm.work_folder import WorkFolder

OF_STOPPING = ("wait_count", "best_score")  # state of mmengine's early stopping, which has no `state_dict`


class StepError(ConfigError):
    """A training step was refused because it would have made weights NaN or infinite."""


class StepGuard(Hook):
    """Refuse optimizer steps from gradients that are not finite, and checkpoints with such weights or losses.

    Before the first step it validates on one image, so that faults of the validation do not cost an epoch. Losses are
    means over the processes, equal to the losses of one process with all images.
    """

    priority = "HIGHEST"  # before mmengine saves, for which it first removes an older or the best checkpoint

    def before_train(self, runner) -> None:
        if runner.val_loop is not None:
            model = getattr(runner.val_loop, "model", runner.model)  # an extension's loop may wrap it
            dry_step.validate(model, runner.val_dataloader, runner.val_evaluator, runner.val_loop.fp16)
        if isinstance(runner.optim_wrapper, OptimWrapper):  # a project may have several
            # Under AMP, this checks the steps that the loss scaler lets pass.
            runner.optim_wrapper.optimizer.register_step_pre_hook(lambda optimizer, *_: self._check(runner, optimizer))

    def before_train_iter(self, runner, batch_idx: int, data_batch=None) -> None:
        runner.batch, runner.in_step = data_batch, True

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        if is_distributed():
            values = [torch.as_tensor(x, dtype=torch.float32, device=get_device()) for x in outputs.values()]
            all_reduce(means := torch.stack(values), "mean")
            outputs.update(zip(outputs, means))
        hooks = [hook for hook in runner.hooks if isinstance(hook, CheckpointHook) and not hook.by_epoch]
        if any(h.every_n_train_iters(runner, h.interval, h.save_begin) or h.is_last_train_iter(runner) for h in hooks):
            self._check_finite(runner)
        if runner.made % runner.accumulated == 0:
            runner.begin()

    def after_train_epoch(self, runner) -> None:
        self._check_finite(runner)

    def after_val_epoch(self, runner, metrics=None) -> None:
        self._check_finite(runner)

    def _check(self, runner, optimizer: torch.optim.Optimizer) -> None:
        parameters = (x for group in optimizer.param_groups for x in group["params"])
        gradients = [x.grad for x in parameters if x.grad is not None]
        if gradients and not runner.are_finite(gradients):
            refuse(runner, "the gradients are not finite")

    def _check_finite(self, runner) -> None:
        model = unwrapped(runner.model)
        wrong = [name for name, x in model.state_dict().items() if isinstance(x, Tensor) and not runner.is_finite(x)]
        loss = runner.message_hub.log_scalars.get("train/loss")
        if wrong or (loss is not None and not math.isfinite(loss.current())):
            raise StepError(
                f"iteration {runner.made}: not finite: {join_some(wrong or ['the loss'])}; so no checkpoint is "
                f"saved, and the older ones stay. Resume from one of them, with a smaller learning rate"
            )


def refuse(runner: Any, reason: str, has_losses: bool = True) -> None:
    """Raise a StepError, after computing the losses of the iteration again to name the cause."""
    model = unwrapped(runner.model)
    seed_everything(runner.seed, get_rank(), runner.iter)  # as in ReproducibleHook
    with torch.no_grad():
        losses = model(**model.data_preprocessor(runner.batch, True), mode="loss") if has_losses else {}
        values = model.parse_losses(losses)[1] if losses else {}
    before = "" if all(runner.is_finite(x) for x in model.parameters()) else "The weights were not finite before it. "
    names = [getattr(sample, "img_path", "?") for sample in runner.batch.get("data_samples") or ()]
    listed = ", ".join(f"{name} {float(value):.4g}" for name, value in values.items())
    raise StepError(
        f"iteration {runner.made}: {reason}, so the step is not made; checkpoints are as they were. "
        f"Losses: {listed or 'none, they need a matching'}. Images: {join_some(names)}. {before}Most often the "
        f"learning rate is too high, or gradients are not clipped (optim_wrapper.clip_grad.max_norm)"
    )


class PlaceHook(Hook):
    """Save and resume the place in the data, the last validation and the states of hooks.

    Also save when a hook such as early stopping ends a training.
    """

    priority = "HIGHEST"  # before CheckpointHook saves

    def before_train_epoch(self, runner) -> None:
        runner.epoch_begin = runner.epoch, runner.iter - getattr(runner.train_dataloader.batch_sampler, "seen", 0)

    def after_val_epoch(self, runner, metrics=None) -> None:
        runner.in_validation, runner.validated = False, runner.iter

    def after_train(self, runner) -> None:
        if runner.train_loop.stop_training and runner.saved != runner.made:  # before other hooks, as they may fail
            runner.logger.info(f"stopped early, after iteration {runner.made}; saved {save(runner)}")

    def before_save_checkpoint(self, runner, checkpoint: dict) -> None:
        meta = checkpoint["meta"]
        meta |= {"validated": runner.validated, "vitdense_version": vitdense.__version__}
        leaves = (part for _, part in parts(runner.train_dataloader.dataset) if hasattr(part, "cat_ids"))
        ids = {tuple(leaf.cat_ids) for leaf in leaves}
        if len(ids) == 1:  # the same in all joined files
            meta["dataset_meta"]["category_ids"] = [*ids.pop()]
        if isinstance(runner.train_loop, EpochBasedTrainLoop):
            epoch, begin = runner.epoch_begin
            batches = meta["iter"] - begin if meta["epoch"] == epoch else 0
            meta["place"] = place_in(runner.train_loop, batches)._asdict()
        checkpoint["hooks"] = {
            name: hook.state_dict() if hasattr(hook, "state_dict") else {key: getattr(hook, key) for key in OF_STOPPING}
            for name, hook in _deciding(runner.hooks)
        }

    def after_load_checkpoint(self, runner, checkpoint: dict) -> None:
        if not runner._resume:
            return
        check_steps(runner, checkpoint)
        if take_raw_weights(runner, checkpoint):
            runner.logger.warning("resume: without EMAHook, so from the weights that it averaged, not their average")
        runner.place = checkpoint["meta"].get("place")
        runner.validated = checkpoint["meta"].get("validated", checkpoint["meta"]["iter"])  # older files lack it
        states = checkpoint.get("hooks", {})
        for name, hook in _deciding(runner.hooks):
            if name in states and hasattr(hook, "load_state_dict"):
                hook.load_state_dict(states[name])
            elif name in states:
                vars(hook).update(states[name])


def _deciding(hooks: Sequence[Hook]) -> Iterator[tuple[str, Hook]]:
    """Hooks with a state, and their names in checkpoints: class and number."""
    counts: Counter[str] = Counter()
    for hook in hooks:
        if hasattr(hook, "state_dict") or isinstance(hook, EarlyStoppingHook):
            kind = type(hook).__name__
            yield f"{kind}_{counts[kind]}", hook
            counts[kind] += 1


class StopHook(Hook):
    """Save when Ctrl-C or another signal ends a training."""

    priority = "LOWEST"  # after all other hooks of the iteration

    def __init__(self) -> None:
        self.received = 0  # signal
        self.shared_steps = 0  # batches of a validation that all processes have

    def before_train(self, runner) -> None:
        # Until now there was nothing to save.
        signals = (signal.SIGINT, *STOPS)
        runner.ending.enter_context(handling_stops(lambda number, frame: self._receive(runner, number), signals))
        if runner._resume and _must_validate(runner):
            runner.logger.info(f"the validation after iteration {runner.iter}, which the checkpoint precedes")
            runner.val_loop.run()

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        if runner.made % runner.accumulated == 0:  # an incomplete step would lose its gradients
            self._stop_if_asked(runner)
        runner.in_step = False

    def before_val(self, runner) -> None:
        self._stop_if_asked(runner)

    def before_val_epoch(self, runner) -> None:
        runner.in_validation = True

    def after_val_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        if batch_idx in range(0, self.shared_steps, 10):  # processes wait for each other
            self._stop_if_asked(runner)

    after_val = before_val

    def _receive(self, runner, number: int) -> None:
        if self.received == number == signal.SIGINT:
            raise KeyboardInterrupt
        if number == signal.SIGINT:
            runner.logger.info("saving a checkpoint after this iteration; Ctrl-C again stops without one")
        self.received = number
        if runner.in_validation and not is_distributed():  # other processes would wait for this one
            self._stop(runner)

    def _stop_if_asked(self, runner) -> None:
        if is_distributed():
            steps = len(runner.val_dataloader) if runner._val_loop else 0
            flags = torch.tensor([self.received, -steps], device=get_device())
            all_reduce(flags, "max")
            self.received, self.shared_steps = int(flags[0]), -int(flags[1])
        if self.received and runner._train_loop is not None:
            self._stop(runner)

    def _stop(self, runner) -> None:
        if runner.in_validation:
            runner.in_validation = False
            for hook in runner.hooks:
                if isinstance(hook, EMAHook):
                    hook.after_val_epoch(runner)  # such as EMAHook, which restores the weights
        name = save(runner)
        text = f"stopped by {signal.Signals(self.received).name} after iteration {runner.made}"
        raise StopSignal(f"{text}; --resume goes on from {name}", self.received)


def save(runner) -> str:
    name = f"iter_{runner.made}.pth"
    meta = {"epoch": runner.epoch, "iter": runner.made}
    runner.save_checkpoint(runner.work_dir, name, meta=meta, backend_args={"backend": "vitdense.atomic"})
    if is_main_process():
        WorkFolder(runner.work_dir).note(name)
    return name


def _must_validate(runner) -> bool:
    """Whether a resumed training begins with a validation, by mmengine's rule after a step or an epoch."""
    loop = runner.train_loop
    by_epoch = isinstance(loop, EpochBasedTrainLoop)
    if runner._val_loop is None or not runner.iter or runner.validated == runner.iter:
        return False
    if by_epoch and getattr(loop.dataloader.batch_sampler, "seen", 0):
        return False
    loop._decide_current_val_interval()
    now, end = (loop.epoch, loop.max_epochs) if by_epoch else (loop.iter, loop.max_iters)
    return now >= loop.val_begin and (now % loop.val_interval == 0 or now == end)


GUARDS = (PlaceHook, StepGuard, StopHook)
