"""Memory and time of a training step, measured on a few real ones."""

import contextlib
import itertools
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import torch
from mmengine.device import get_device
from mmengine.optim import build_optim_wrapper

from vitdense.mm.checks.dry_step import loader_here
from vitdense.mm.config.build import build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.config.query import drop_weights

WARM_UP, MEASURED = 1, 2  # iterations


class Estimate(NamedTuple):
    """Cost of training."""

    device: str  # on which it trains, as mmengine finds it
    batch_size: int  # images per iteration
    seconds: float  # per iteration; the data are loaded before it, as by worker processes
    memory: int | None  # peak in bytes of the GPU or of the process; None where the system does not say it
    iterations: int  # of the whole run

    def __str__(self) -> str:
        minutes = self.seconds * self.iterations / 60
        whole = f"{minutes:.0f} minutes" if minutes < 120 else f"{minutes / 60:.1f} hours"
        seconds = f"{self.seconds:.0f}" if self.seconds >= 10 else f"{self.seconds:.2g}"
        memory = "" if self.memory is None else f" and {self.memory / 2**30:.1f} GiB"
        return (
            f"{seconds} s{memory} per iteration of {self.batch_size} images on {self.device}; {self.iterations} "
            f"iterations: about {whole}, without validation"
        )


def estimate(config: Path) -> str:
    """Measure in a process of its own, which may run out of memory; the result, or why there is none, in one line."""
    try:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return f"estimate: {pool.submit(measure, config).result()}"
    except Exception as error:  # of any kind; a process that was killed raises BrokenProcessPool
        reason = next(iter(str(error).splitlines()), "")  # BrokenProcessPool is also what lack of memory gives
        return f"estimate: not possible here ({type(error).__name__}: {reason})"


def measure(config: Path) -> Estimate:
    """Run a few training iterations of a config, without their log: the real data, random weights."""
    with (
        open(os.devnull, "w", encoding="utf-8") as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        cfg = load_config(config)
        device = get_device()
        drop_weights(cfg.model)
        model = build_model(cfg).to(device).train()  # first: it sets the scope in which types of the data are found
        loader, optim_wrapper = loader_here(cfg.train_dataloader), build_optim_wrapper(model, cfg.optim_wrapper)
        batches = itertools.chain.from_iterable(itertools.repeat(loader))
        seconds = 0.0
        for i, batch in enumerate(itertools.islice(batches, WARM_UP + MEASURED)):
            start = time.perf_counter()
            model.train_step(batch, optim_wrapper)
            if device != "cpu":
                torch.accelerator.synchronize()
            seconds += (time.perf_counter() - start) * (i >= WARM_UP)
    iterations = cfg.train_cfg.get("max_iters") or cfg.train_cfg.max_epochs * len(loader)
    return Estimate(device, cfg.train_dataloader.batch_size, seconds / MEASURED, _peak_memory(device), iterations)


def _peak_memory(device: str) -> int | None:
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    if device != "cpu" or sys.platform == "win32":
        return None
    import resource  # Unix has it

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
