"""What a training resumes from: its steps, its weights, its place in the data."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.dist import get_world_size
from mmengine.hooks import EMAHook
from mmengine.optim import OptimWrapper
from mmengine.runner import EpochBasedTrainLoop
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import BatchSampler

from vitdense.families import is_number
from vitdense.mm.config.diff import read_saved
from vitdense.mm.data.continued import skip
from vitdense.mm.errors import ConfigError

AS_IT_WAS = "resume as that run was, or start a new one from its weights: --cfg-options load_from=CHECKPOINT"
PATHS = re.compile(r"last_ckpt|best_ckpt.*")  # keys of mmengine's CheckpointHook in the message hub


class Place(NamedTuple):
    """Where a training is in its data, as saved in a checkpoint."""

    images: int  # images of the epoch that were used
    of: int  # images per epoch
    batches: int  # iterations of the epoch that were made
    per_step: int  # images per iteration, in all processes


def place_in(loop: EpochBasedTrainLoop, batches: int) -> Place:
    of, per_step = len(loop.dataloader.dataset), loop.dataloader.batch_sampler.batch_size * get_world_size()
    return Place(min(batches * per_step, of), of, batches, per_step)


def go_on(loop: EpochBasedTrainLoop, saved: Mapping[str, int] | None) -> None:
    """Continue the epoch of a checkpoint where it was, also with another batch size; the number of epochs stays.

    Other images, or a place that no whole number of the new batches reaches, are a ConfigError. `saved` is a `Place` as
    a dict, or None for files of mmengine's runner, from the end of an epoch; the loop has the epoch and the iteration.
    """
    loader, now = loop.dataloader, place_in(loop, 0)
    place = Place(*(saved[key] for key in Place._fields)) if saved else now
    batches = place.batches
    if batches and place.of != now.of:
        raise _within(f"got a data set of {now.of} images, expected the {place.of} of that run")
    if batches and place.per_step != now.per_step:
        if place.images % now.per_step or type(loader.batch_sampler) is not BatchSampler:
            raise _within(
                f"got {now.per_step} images a step, expected {place.per_step} as in that run: the {place.images} "
                f"images that were seen are no whole batches now"
            )
        batches = place.images // now.per_step
    if batches:
        skip(loader, batches)
    loop._max_iters = loop.iter - batches + (loop.max_epochs - loop.epoch) * len(loader)


def _within(reason: str) -> ConfigError:
    return ConfigError(
        f"resume: the checkpoint is from within an epoch, and {reason}. Resume with data, batch and processes of that "
        f"run, or from the end of an epoch: --resume epoch_N.pth"
    )


def check_steps(runner: Any, checkpoint: Mapping) -> None:
    """Raise a ConfigError if a checkpoint has another optimizer or other schedules, whose states mm would load."""
    saved, now = checkpoint.get("optimizer"), runner.optim_wrapper
    if not isinstance(saved, Mapping) or not isinstance(now, OptimWrapper):
        return  # `check_whole` reports a missing optimizer; a project may have several
    groups = saved.get("param_groups"), now.optimizer.state_dict()["param_groups"]
    form = [{"lr": 0.1, "params": []}]
    if not isinstance(groups[0], list) or any(unlike([group], form, "") for group in groups[0]):
        raise _damaged(f"param_groups {groups[0]}")
    if not isinstance(checkpoint.get("param_schedulers"), list | None):
        raise _damaged(f"param_schedulers {checkpoint['param_schedulers']}")
    sizes = [[len(group["params"]) for group in of_run] for of_run in groups]
    kinds = [_optimizer(config) for config in (read_saved(checkpoint) or {}, runner.cfg.to_dict())]
    had, got = ("with" if has else "without" for has in ("loss_scaler" in saved, hasattr(now, "loss_scaler")))
    schedules = [step.state_dict().keys() for step in runner.param_schedulers or ()]
    if None not in kinds and kinds[0] != kinds[1]:
        fault = f"got the optimizer {kinds[1]}, but the checkpoint is of a run with {kinds[0]}"
    elif sizes[0] != sizes[1]:
        fault = "the optimizer of the checkpoint is for other parameters than those that train now"
    elif got != had:
        fault = f"got a training {got} a scaled loss (--amp float16), but the checkpoint is of a run {had} it"
    elif schedules != [step.keys() for step in checkpoint.get("param_schedulers") or ()]:
        fault = "param_scheduler has other schedules than the run of the checkpoint"
    else:
        steps = [step.state_dict() for step in runner.param_schedulers or ()]
        found = unlike(groups[0], groups[1], "param_groups")
        found = found or unlike(checkpoint.get("param_schedulers") or [], steps, "param_schedulers")
        if found := found or _unlike_state(saved, now.optimizer):
            raise _damaged(found)
        return
    raise ConfigError(f"resume: {fault}; {AS_IT_WAS}")


def _damaged(what: str) -> ConfigError:
    return ConfigError(f"resume: the checkpoint has {what[:80]}, which no training writes; use an older one")


def unlike(saved: object, now: object, where: str) -> str | None:
    """The first place where a saved state has another form than the state now, and what it has; None without one.

    Lists of parameters may have other lengths.
    """
    if now is None or (isinstance(now, bool) and (saved is None or isinstance(saved, bool))):
        return None
    if isinstance(now, dict) and isinstance(saved, dict):
        pairs = [(key, saved.get(key), value) for key, value in now.items() if key in saved or key in ("lr", "params")]
    elif isinstance(now, (list, tuple)) and isinstance(saved, (list, tuple)):
        pairs = [(key, *values) for key, values in enumerate(zip(saved, now))]
        if len(saved) != len(now) and now and not where.endswith(".params"):
            return f"{where} of {len(saved)} values"
    else:
        is_number = _is_number(saved) if _is_number(now) else isinstance(saved, type(now))
        return None if is_number else f"{where} {saved!r}"
    return next(filter(None, (unlike(a, b, f"{where}.{key}") for key, a, b in pairs)), None)


def _is_number(value: object) -> bool:
    return is_number(value.item() if isinstance(value, Tensor) and value.numel() == 1 else value)


def _unlike_state(saved: Mapping, optimizer: Optimizer) -> str | None:
    """The first tensor of an optimizer's saved state that does not fit its parameter, and its shape."""
    for of_run, group in zip(saved["param_groups"], optimizer.param_groups):
        states = [saved.get("state", {}).get(i) or {} for i in of_run["params"]]
        names = next(filter(None, (state.keys() for state in states)), set())
        for i, state, parameter in zip(of_run["params"], states, group["params"]):
            if state and state.keys() != names:
                return f"the state {[*state]} of parameter {i}"
            for name, x in state.items():
                fits = not isinstance(x, Tensor) or x.numel() == 1
                fits = fits or (
                    x.ndim == parameter.ndim and x.is_complex() == parameter.is_complex() and name != "step"
                )
                if not fits:  # other sizes are of a changed model, which `ExactLoadHook` refuses by name
                    return f"{name} {tuple(x.shape)} of parameter {i}"
    return None


def _optimizer(config: Mapping) -> str | None:
    kind = ((config.get("optim_wrapper") or {}).get("optimizer") or {}).get("type")
    return kind.rpartition(".")[2] if isinstance(kind, str) else None


def take_raw_weights(runner: Any, checkpoint: dict) -> bool:
    """For a run without averaging, take the raw weights of a checkpoint; returns whether it had an average.

    mmengine's EMAHook saves the average as the model's weights, and the raw weights elsewhere.
    """
    average = checkpoint.get("ema_state_dict")
    if average is None or any(isinstance(hook, EMAHook) for hook in runner.hooks):
        return False
    raw = {name.removeprefix("module."): value for name, value in average.items() if name.startswith("module.")}
    checkpoint["state_dict"].update({name: raw[name] for name in checkpoint["state_dict"] if name in raw})
    return True


def stay_in(folder: Path, hub: Any) -> None:
    """Move paths of checkpoints in the message hub to this folder, so that a copy does not remove the original's."""
    for key, path in list(hub.runtime_info.items()):
        if PATHS.fullmatch(key) and path:
            hub.update_info(key, str(folder / re.split(r"[\\/]", str(path))[-1]))
