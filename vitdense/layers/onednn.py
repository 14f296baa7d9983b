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

# Of glibc's mallopt.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
KEEP = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: -1}  # no allocation by mmap, which free would return; the heap never shrinks
# Where its own thresholds are as soon as a large tensor was freed; it stops moving them once one is set.
AS_GLIBC = {M_MMAP_MAX: 65536, M_MMAP_THRESHOLD: 2**25, M_TRIM_THRESHOLD: 2**26}
# Multiply-adds from which on a product is worth the 40 us that a call of oneDNN costs beyond one of MKL.
SMALLEST_PRODUCT = 2**26


class OneDnnLinear(TorchFunctionMode):
    """A context in which linear layers on a CPU compute in oneDNN as one kernel, in float32 and in bfloat16, also by
    autocast; without gradients.

    In float32 torch would take MKL, which leaves half to three quarters of an AMD CPU with AVX-512 unused; with AVX2
    alone both reach the peak (docs/performance.md). The error against float64 is that of float32 in both. In bfloat16
    torch writes the bias first, then adds the product.

    Modules, their hooks and their weights stay as they are: calls of `torch.nn.functional.linear` by this thread are
    answered. `torch.set_float32_matmul_precision` would choose oneDNN too, but for all products of the process:
    attention in small windows becomes slow by it, and a CPU with AMX computes in bfloat16.

    Weights in bfloat16 are kept, laid out for oneDNN, as long as their parameters live: the next batch has them. A
    weight that has changed, or whose memory is another one, is cast again; writes through `.data` count as none in
    torch.
    """

    def __torch_function__(
        self, function: Callable, types: Sequence[type], args: Sequence = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function is F.linear:
            return self.linear(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))

    def linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """`torch.nn.functional.linear`, ``[..., C]`` to ``[..., C']``. A weight ``[C]``, to ``[...]``, is torch's."""
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


_packed = WeakIdKeyDictionary()  # by parameter: its version and memory, and what is kept of it


def packed(weight: Tensor) -> Tensor:
    """A weight ``[C', C]`` in bfloat16, as oneDNN reads it; of a parameter it is kept."""
    if not isinstance(weight, nn.Parameter) or weight.is_inference():  # one that is made anew, or has no version
        return weight.to(torch.bfloat16)
    state = weight._version, weight.data_ptr()
    kept = _packed.get(weight)
    if kept is None or kept[0] != state:
        kept = _packed[weight] = state, torch.ops.mkldnn._reorder_linear_weight(weight.to(torch.bfloat16))
    return kept[1]


@cache
def multiplies_bfloat16() -> bool:
    """Whether oneDNN takes bfloat16 on this CPU; elsewhere it raises."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


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
