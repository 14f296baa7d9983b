"""Inference on a CPU: linear layers by oneDNN, and memory that the process keeps."""

import ctypes
import platform
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from vitdense.layers.layout import compute_dtype, is_traced

# Parameters of glibc's mallopt.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
KEEP = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: -1}  # no mmap, whose memory free would return; the heap never shrinks
# glibc's own thresholds after a large tensor was freed; it stops adapting them once one is set.
AS_GLIBC = {M_MMAP_MAX: 65536, M_MMAP_THRESHOLD: 2**25, M_TRIM_THRESHOLD: 2**26}
# Least multiply-adds of a product to be worth the 40 us that a call of oneDNN costs more than one of MKL.
SMALLEST_PRODUCT = 2**26


class OneDnnLinear(TorchFunctionMode):
    """A context in which linear layers on a CPU run as one oneDNN kernel, in float32 or bfloat16 (also by autocast).

    Without gradients only. In float32 torch would use MKL, which leaves half to three quarters of an AMD CPU with
    AVX-512 unused; with AVX2 both reach the peak (docs/performance.md). Errors are the usual ones of float32 in both.
    In bfloat16 torch would write the bias first, then add the product.

    Modules, hooks and weights stay as they are: the context replaces `torch.nn.functional.linear` for this thread.
    `torch.set_float32_matmul_precision` would also choose oneDNN, but for all products of the process: attention in
    small windows would be slow, and a CPU with AMX would compute in bfloat16.

    bfloat16 weights are kept in oneDNN's layout as long as their parameters live. A weight is converted again after a
    change, or if its memory is another. torch does not notice writes through `.data`.
    """

    def __torch_function__(
        self, function: Callable, types: Sequence[type], args: Sequence = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function is F.linear:
            return self.linear(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))

    def linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """`torch.nn.functional.linear`, ``[..., C]`` to ``[..., C']``. A weight ``[C]`` is left to torch."""
        dtype = compute_dtype(input)
        dtypes = {input.dtype, weight.dtype}  # autocast leaves float64
        applies = (
            input.device.type == "cpu"
            and weight.ndim == 2
            and (dtypes == {dtype} or (torch.is_autocast_enabled("cpu") and dtypes <= {torch.float32, torch.bfloat16}))
            and (dtype == torch.float32 or (dtype == torch.bfloat16 and multiplies_bfloat16()))
            and input.numel() * len(weight) >= SMALLEST_PRODUCT
            and not torch.is_grad_enabled()
            and not is_traced()
        )
        if not applies:
            return F.linear(input, weight, bias)
        if dtype == torch.bfloat16:
            input, weight, bias = input.to(dtype), packed(weight), None if bias is None else bias.to(dtype)
        return torch.ops.mkldnn._linear_pointwise(input, weight, bias, "none", [], "")


_packed = WeakIdKeyDictionary()  # parameter -> its version and memory, and the packed weight


def packed(weight: Tensor) -> Tensor:
    """A weight ``[C', C]`` in bfloat16 and oneDNN's layout; kept for parameters."""
    if not isinstance(weight, nn.Parameter) or weight.is_inference():  # temporary, or without a version
        return weight.to(torch.bfloat16)
    state = weight._version, weight.data_ptr()
    kept = _packed.get(weight)
    if kept is None or kept[0] != state:
        kept = _packed[weight] = state, torch.ops.mkldnn._reorder_linear_weight(weight.to(torch.bfloat16))
    return kept[1]


@cache
def multiplies_bfloat16() -> bool:
    """Whether oneDNN supports bfloat16 on this CPU; else it would raise."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def has_onednn() -> bool:
    return torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()


def keep_memory(keep: bool = True) -> bool:
    """Let this process keep freed CPU memory for later tensors. Needs glibc.

    By default glibc returns the memory of tensors from 32 MiB on to the system, which zeroes every page of the next
    ones. With this, the process keeps its peak memory.

    Args:
        keep: False restores glibc's behaviour.

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
    return platform.libc_ver()[0] == "glibc"
