"""Automatic mixed precision: the data types in which a device computes."""

import argparse
import platform
from contextlib import AbstractContextManager, nullcontext

import torch

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


def autocast(dtype: str | None, device: str) -> AbstractContextManager:
    """The context in which a device computes in a data type of `AMP_DTYPES`; None: in float32.

    Raises:
        ConfigError: See `check_precision`.
    """
    if dtype is None:
        return nullcontext()
    check_precision(f"--amp {dtype}", dtype, device)
    return torch.autocast(torch.device(device).type, getattr(torch, dtype))


def check_precision(option: str, dtype: str, device: str) -> None:
    """Raise if a device is a CPU that does not compute in a data type.

    Args:
        option: For the message.
        dtype: ``float32`` or one of `AMP_DTYPES`.
        device: ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        ConfigError: It is float16, or this CPU has no instructions for bfloat16: torch would emulate them, in several
            times the time of float32.
    """
    if torch.device(device).type != "cpu" or dtype == "float32":
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
