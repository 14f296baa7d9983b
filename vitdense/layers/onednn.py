"""Inference in float32 on a CPU: linear layers by oneDNN, and memory that the process keeps."""

import ctypes
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

# Of glibc's mallopt.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
KEEP = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: -1}  # no allocation by mmap, which free would return; the heap never shrinks
# Where its own thresholds are as soon as a large tensor was freed; it stops moving them once one is set.
AS_GLIBC = {M_MMAP_MAX: 65536, M_MMAP_THRESHOLD: 2**25, M_TRIM_THRESHOLD: 2**26}
# Multiply-adds from which on a product is worth the 40 us that a call of oneDNN costs beyond one of MKL.
SMALLEST_PRODUCT = 2**26


class OneDnnLinear(TorchFunctionMode):
    """A context in which linear layers compute in oneDNN where torch would take MKL: in float32, without gradients.

    MKL leaves half to three quarters of an AMD CPU with AVX-512 unused, oneDNN does not; with AVX2 alone both reach the
    peak (docs/performance.md). The error against float64 is that of float32 in both.

    Modules, their hooks and their weights stay as they are: calls of `torch.nn.functional.linear` by this thread are
    answered. `torch.set_float32_matmul_precision` would choose oneDNN too, but for all products of the process:
    attention in small windows becomes slow by it, and a CPU with AMX computes in bfloat16.
    """

    def __torch_function__(
        self, function: Callable, types: Sequence[type], args: Sequence = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function is F.linear:
            return linear(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear` by oneDNN, where torch would take MKL: ``[..., C]`` to ``[..., C']``.

    A weight ``[C]``, to ``[...]``, is torch's.
    """
    applies = (
        input.device.type == "cpu"
        and input.dtype == weight.dtype == torch.float32
        and weight.ndim == 2
        and input.numel() * len(weight) >= SMALLEST_PRODUCT
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
    )
    if not applies:
        return F.linear(input, weight, bias)
    return torch.ops.mkldnn._linear_pointwise(input, weight, bias, "none", [], "")


def has_onednn() -> bool:
    """Whether torch has both libraries."""
    return torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()


def keep_memory(keep: bool = True) -> bool:
    """Let this process keep the memory that tensors on the CPU free, for those that come next.

    Otherwise glibc returns tensors from 32 MiB on to the system, which then fills every page of the next ones with
    zeros. The process keeps the memory of its peak. It needs glibc.

    Args:
        keep: False: as glibc does by default once it has freed a large tensor.

    Returns:
        Whether it took effect.
    """
    if not is_glibc():
        return False
    libc = ctypes.CDLL(None)
    taken = [libc.mallopt(option, value) for option, value in (KEEP if keep else AS_GLIBC).items()]
    if not keep:
        libc.malloc_trim(0)
    return all(taken)


def is_glibc() -> bool:
    """Whether memory comes from glibc."""
    return platform.libc_ver()[0] == "glibc"
