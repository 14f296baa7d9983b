"""Time and peak memory of functions."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile


def alternate(functions: Mapping[str, Callable[[], object]], rounds: int, warmup: int = 2) -> dict[str, list[float]]:
    """Time functions in turn: every round runs each once, so that changes of the machine's speed affect all alike.

    Args:
        functions: Functions by name.
        rounds: Timed rounds.
        warmup: Rounds before them, not timed.

    Returns:
        Seconds of every timed round, by name.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for i in range(warmup + rounds):
        for name, function in functions.items():
            _synchronize()
            start = time.perf_counter()
            function()
            _synchronize()
            if i >= warmup:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def median_ratio(seconds: Mapping[str, Sequence[float]], ours: str, peer: str) -> float:
    """Speed-up of `ours` over `peer`: median of the ratios of the rounds."""
    return statistics.median(b / a for a, b in zip(seconds[ours], seconds[peer]))


def peak_memory(function: Callable[[], object], device: str) -> int:
    """Peak of the bytes that torch allocates during one call."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        function()
    now = peak = 0
    for event in run.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def forward_backward(model: nn.Module, run: Callable, x: Tensor) -> None:
    """One training step without an optimiser: ``run(x)``, the sum of its maps, backward, gradients cleared."""
    sum(out.float().mean() for out in run(x)).backward()
    model.zero_grad(set_to_none=True)
