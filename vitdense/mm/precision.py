"""How a device computes: automatic mixed precision; on a CPU in float32, oneDNN."""

import argparse
import platform
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from mmengine.logging import print_log
from mmengine.structures import BaseDataElement
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from vitdense.inspect.cpu import OneDnnLinear, has_onednn, keep_memory
from vitdense.mm.errors import ConfigError

AMP_DTYPES = ("float16", "bfloat16")


def add_amp(parser: argparse.ArgumentParser) -> None:
    """Add the option of automatic mixed precision."""
    parser.add_argument(
        "--amp",
        nargs="?",
        const="float16",
        choices=AMP_DTYPES,
        help="automatic mixed precision: float16 (default) on a GPU; bfloat16 on a GPU, or a CPU that has it",
    )


def add_onednn(parser: argparse.ArgumentParser) -> None:
    """Add the option of inference on a CPU as torch has it."""
    parser.add_argument(
        "--no-onednn",
        dest="onednn",
        action="store_false",
        help="on a CPU in float32: products in MKL, memory returned to the system after every layer, as torch has it",
    )


def tune_cpu(device: str, dtype: str | None = None) -> None:
    """Keep memory between layers where the device is a CPU, and log how it computes; see `vitdense.inspect.cpu`."""
    if torch.device(device).type != "cpu":
        return
    kept = "memory is kept between layers" if keep_memory() else "memory is not kept between layers, without glibc"
    library = "oneDNN" if has_onednn() and dtype in (None, "float32") else "torch's choice"
    print_log(f"CPU: large linear layers by {library}; {kept} (--no-onednn: as torch has it)", logger="current")


def computing(device: str, dtype: str | None = None, onednn: bool = True) -> AbstractContextManager:
    """The context in which a device computes.

    Args:
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        dtype: One of `AMP_DTYPES`, for autocast; ``float32`` or None.
        onednn: On a CPU in float32, linear layers by oneDNN; see `OneDnnLinear`.
    """
    kind = torch.device(device).type
    if dtype in AMP_DTYPES:
        return torch.autocast(kind, getattr(torch, dtype))
    return OneDnnLinear() if kind == "cpu" and onednn and has_onednn() else nullcontext()


def predict_float32(model: nn.Module) -> None:
    """Let a model of mm, which may be wrapped, predict in float32 what reduced precision would spoil.

    Data samples: metrics, tiles and results go on with NumPy, which has no bfloat16. Under autocast also the outputs of
    dense heads: mmdet makes anchors and points in their data type, and bfloat16 rounds these to multiples of 4 from 512
    pixels on.
    """
    while isinstance(inner := getattr(model, "module", None), nn.Module):
        model = inner
    model.register_forward_hook(_as_float32)
    for part in model.modules():
        if hasattr(part, "prior_generator"):
            part.register_forward_hook(_maps_as_float32)


def _maps_as_float32(head: nn.Module, args: tuple, outputs: Any) -> Any:
    if head.training:
        return outputs
    return tree_map_only(Tensor, lambda x: x.float() if torch.is_autocast_enabled(x.device.type) else x, outputs)


def _as_float32(module: nn.Module, args: tuple, outputs: Any) -> None:
    samples = outputs if isinstance(outputs, list) else []  # otherwise losses or maps
    for part in (part for sample in samples if isinstance(sample, BaseDataElement) for part in sample.values()):
        for name, value in part.items() if isinstance(part, BaseDataElement) else ():
            if isinstance(value, Tensor) and value.is_floating_point():
                setattr(part, name, value.float())


def check_precision(option: str, dtype: str | None, device: str) -> None:
    """Raise if a device is a CPU that does not compute in a data type.

    Args:
        option: For the message.
        dtype: One of `AMP_DTYPES`; ``float32`` or None.
        device: ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        ConfigError: It is float16, or this CPU has no instructions for bfloat16: torch would emulate them, in several
            times the time of float32.
    """
    if torch.device(device).type != "cpu" or dtype in (None, "float32"):
        return
    if dtype != "bfloat16":
        raise ConfigError(
            f"{option}: {dtype} needs a GPU, and the device is a CPU; give bfloat16, or leave it out for float32"
        )
    if not cpu_has_bfloat16():
        raise ConfigError(
            f"{option}: this CPU has no instructions for bfloat16 (AVX-512 BF16, AMX or Arm's BF16), and torch would "
            f"emulate them slowly; leave it out for float32"
        )


def cpu_has_bfloat16() -> bool:
    """Whether this CPU multiplies in bfloat16, as torch finds."""
    if platform.machine().lower() in ("aarch64", "arm64"):
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    # On x86 that question is about AVX-512 alone, by which bfloat16 is emulated.
    return torch.cpu._is_avx512_bf16_supported()
