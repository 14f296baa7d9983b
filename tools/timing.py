"""Time and peak memory of functions, measured against each other in one process."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile


def alternate(functions: Mapping[str, Callable[[], object]], rounds: int, warmup: int = 2) -> dict[str, list[float]]:
    """Time functions against each other: every round runs each once, so that drifts of the machine hit all alike.

    Args:
        functions: By name.
        rounds: Timed rounds.
        warmup: Rounds before them that do not count.

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
    """How many times faster `ours` is than `peer`: the median over rounds of the ratio within a round."""
    return statistics.median(b / a for a, b in zip(seconds[ours], seconds[peer]))


def peak_memory(function: Callable[[], object], device: str) -> int:
    """Peak of the bytes that torch has allocated during one call, beyond those before it."""
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
    """One training step without an optimiser: ``run(x)``, the sum of its maps, backward; leaves no gradients behind."""
    sum(out.float().mean() for out in run(x)).backward()
    model.zero_grad(set_to_none=True)
