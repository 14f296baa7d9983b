"""``--batch-size auto``: as many images a step as memory holds, found by trying."""

import copy
import itertools
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.logging import print_log
from mmengine.optim import OptimWrapper, build_optim_wrapper
from mmengine.registry import DefaultScope
from torch import nn
from torch.utils.data import DataLoader

from vitdense.mm.checks.config import batch_size
from vitdense.mm.checks.dry_step import loader_here
from vitdense.mm.config.base import Asked
from vitdense.mm.config.build import build_model
from vitdense.mm.config.query import drop_weights
from vitdense.mm.errors import ConfigError
from vitdense.mm.memory import available_memory, bytes_of

SAMPLES = 16  # images of which the largest is tried: sizes of a training differ
SHARE = 0.8  # of the memory that is left, for that of the workers and of larger images


def in_own_process(task: Callable, *args: Any) -> Any:
    """What a task returns. A process of its own gives the memory back, and may be ended for want of it.

    Raises:
        BrokenProcessPool: It was ended, as where memory runs out.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:  # a fork would have our peak of memory
        return pool.submit(task, *args).result()


def steps_in_process(cfg: Config) -> tuple[DataLoader, nn.Module, OptimWrapper]:
    """The real data in this process, the model with random weights on its device, and its optimiser: for some steps."""
    drop_weights(cfg.model)
    model = build_model(cfg).to(get_device()).train()  # first: it sets the scope in which types of the data are found
    return loader_here(cfg.train_dataloader), model, build_optim_wrapper(model, cfg.optim_wrapper)


def set_batch_size(cfg: Config, asked: Asked) -> None:
    """Set the batch size of a training on one device to the largest that its memory holds, in place.

    The learning rate follows linearly, as by ``auto_scale_lr``, with the images of a step of the optimizer. The most
    is ``auto_scale_lr.base_batch_size``, for which the recipe's learning rate was found: beyond it the rule would be a
    guess.

    Raises:
        ConfigError: The training resumes, there are several processes, or the config has no ``base_batch_size``; the
            device is neither a CPU nor of CUDA; or one image is too much.
    """
    if asked.resume is not None:
        raise ConfigError("--batch-size auto: got --resume too, which goes on with the batch size of the run")
    if (device := get_device()) not in ("cpu", "cuda"):
        raise ConfigError(f"--batch-size auto: it cannot limit the memory of {device}; give a number")
    base = (cfg.get("auto_scale_lr") or {}).get("base_batch_size")
    if cfg.get("launcher", "none") != "none":
        raise ConfigError(
            "--batch-size auto: got several processes, expected one; find it with one, and give the number"
        )
    if not base:
        raise ConfigError("--batch-size auto: the config has no auto_scale_lr.base_batch_size, by which it scales")
    counts = cfg.optim_wrapper.get("accumulative_counts", 1)
    try:
        found = in_own_process(_try_sizes, copy.deepcopy(cfg), max(base // counts, 1))
    except BrokenProcessPool as error:
        raise ConfigError("--batch-size auto: memory ran out while trying; give a number") from error
    cfg.train_dataloader.batch_size = found
    cfg.merge_from_dict({"auto_scale_lr.enable": True})
    rate = cfg.optim_wrapper.optimizer.lr
    print_log(
        f"--batch-size auto: {found} images fit into memory ({device}), {found * counts} a step of the optimizer "
        f"(at most {base}, as in the recipe); learning rate {rate} * {found * counts} / {base} = "
        f"{rate * found * counts / base:.3g}",
        logger="current",
    )


def largest(fits: Callable[[int], bool], least: int, most: int) -> int:
    """The largest size between `least` and `most` that fits, to an eighth: by doubling, then by halves.

    Raises:
        ConfigError: `least` does not fit.
    """
    if not fits(least):
        raise ConfigError(
            f"--batch-size auto: memory does not hold a step of {least} images; choose a smaller image size"
        )
    low = least
    while low < most and fits(min(2 * low, most)):
        low = min(2 * low, most)
    high = min(2 * low, most)
    while high - low > max(1, low // 8):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _try_sizes(cfg: Config, most: int) -> int:
    """The largest batch size up to `most`; made for a process of its own."""
    DefaultScope.get_instance("batch_size", scope_name=cfg.get("default_scope", "mmdet"))
    cfg.train_dataloader.batch_size = 1
    least = 2 if any(batch_size(cfg, ("train",))) else 1  # statistics need two
    cfg.optim_wrapper.accumulative_counts = 1  # state, at once
    loader, model, optim_wrapper = steps_in_process(cfg)
    sample = max(itertools.islice(loader, SAMPLES), key=lambda batch: batch["inputs"][0].numel())
    for group in optim_wrapper.param_groups:
        group["lr"] = 0.0  # random weights stay finite

    def step(number: int) -> None:
        for _ in range(2):  # the second has the optimizer's state
            batch = {key: [copy.deepcopy(value[0]) for _ in range(number)] for key, value in sample.items()}
            model.train_step(batch, optim_wrapper)

    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(SHARE * torch.cuda.mem_get_info()[0] / torch.cuda.mem_get_info()[1])
        fits = _on_cuda(step)
    else:
        fits = _on_cpu(step, SHARE * available_memory())
    return largest(fits, least, max(min(most, len(loader.dataset)), least))


def _on_cuda(step: Callable[[int], None]) -> Callable[[int], bool]:
    """Whether a step of a number of images fits: torch says when memory is out."""

    def fits(number: int) -> bool:
        try:
            step(number)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            return False
        return True

    return fits


def _on_cpu(step: Callable[[int], None], room: float) -> Callable[[int], bool]:
    """Whether a step of a number of images fits into `room` bytes beside what there is. The system would end a process
    that takes too much, so that a size is tried if the peaks of smaller ones say that it fits."""
    start, per_image = bytes_of("/proc/self/status", "VmRSS"), 0.0

    def fits(number: int) -> bool:
        nonlocal per_image
        if number * per_image > room:
            return False
        step(number)
        peak = bytes_of("/proc/self/status", "VmHWM") - start
        per_image = peak / number
        return peak <= room

    return fits
