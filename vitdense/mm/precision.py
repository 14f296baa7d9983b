"""Options of prediction, and how a device computes: mixed precision; on a CPU, oneDNN."""

import argparse
import platform
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields

import torch
from mmengine.logging import print_log

from vitdense.layers.onednn import OneDnnLinear, has_onednn, keep_memory
from vitdense.mm.errors import ConfigError
from vitdense.results.tiles import cut


@dataclass(frozen=True)
class Inference:
    """How a trained model predicts: the same options for `vitdense.load`, evaluation and the tools.

    Attributes:
        device: See `check_device`.
        dtype: Data type of autocast: `torch.float32`; `torch.bfloat16`, on a GPU or a CPU that has it; or
            `torch.float16`, on a GPU.
        score_thr: Minimum score of detections, 0 to 1; None for the operating point beside the checkpoint, or
            `vitdense.runtime.SCORE` without one.
        tiles: Side in pixels of the tiles in which a detector predicts, for small objects in large images; None for
            whole images. Every tile goes through the pipeline of the config like an image. See
            `vitdense.results.tiles` for how detections are merged.
        overlap: Overlap of neighbouring tiles, as a share of their side.
        onednn: On a CPU, run large linear layers by oneDNN; see `vitdense.layers.onednn`.
    """

    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    score_thr: float | None = None
    tiles: int | None = None
    overlap: float = 0.2
    onednn: bool = True

    def __post_init__(self) -> None:
        check_precision(f"--amp {self.amp} (in Python dtype={self.dtype})", self.amp, self.device)
        if self.score_thr is not None:
            check_score(self.score_thr)
        if self.tiles is not None:
            cut((1, 1), self.tiles, self.overlap)

    @classmethod
    def of(cls, args: argparse.Namespace, **options: object) -> "Inference":
        """The options from a tool's parsed arguments."""
        given = {option.name: getattr(args, option.name) for option in fields(cls) if option.name in args}
        if "device" in given:
            given["device"] = device_of(given["device"])
        return cls(dtype=getattr(torch, args.amp or "float32"), **given, **options)

    @property
    def amp(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def _tunes(self) -> bool:
        return self.onednn and torch.device(self.device).type == "cpu"

    def tune_cpu(self) -> None:
        """On a CPU, keep memory between layers, and log the settings; see `vitdense.layers.onednn`."""
        if not self._tunes:
            return
        kept = "memory is kept between layers" if keep_memory() else "memory is not kept between layers, without glibc"
        library = "oneDNN" if has_onednn() else "torch's choice"
        print_log(f"CPU: large linear layers by {library}; {kept} (--no-onednn: as torch has it)", logger="current")

    @contextmanager
    def computing(self) -> Iterator[None]:
        with ExitStack() as stack:
            if self.amp != "float32":
                stack.enter_context(torch.autocast(torch.device(self.device).type, self.dtype))
            if self._tunes and has_onednn():
                stack.enter_context(OneDnnLinear())
            yield


def device_of(given: str | None) -> str:
    """The device of ``--device``; by default cuda if there is one, else cpu."""
    return given or ("cuda" if torch.cuda.is_available() else "cpu")


def check_score(score_thr: float) -> None:
    """Raise a ConfigError if a minimum score is not from 0 to 1."""
    if not 0 <= score_thr <= 1:  # also for NaN
        raise ConfigError(f"score_thr: got {score_thr}, expected a score from 0 to 1 (--score-thr)")


def devices() -> dict[str, int]:
    """Number of devices of each kind that torch finds: the CPU, and an accelerator if there is one."""
    if not torch.accelerator.is_available():
        return {"cpu": 1}
    return {"cpu": 1, torch.accelerator.current_accelerator().type: torch.accelerator.device_count()}


def check_device(option: str, device: str) -> None:
    """Raise a ConfigError, which names `option`, if torch does not find a device.

    A device is ``cpu`` or a kind of accelerator, such as ``cuda``, ``mps`` or ``xpu``, also with a number: ``cuda:N``.
    """
    found = [name for kind, count in devices().items() for name in (kind, *(f"{kind}:{i}" for i in range(count)))]
    if str(device) not in found:
        raise ConfigError(
            f"{option}: got {device!r}, expected one that torch finds on this machine: {', '.join(found)}"
        )


def check_precision(option: str, dtype: str | None, device: str) -> None:
    """Raise a ConfigError, which names `option`, if a device is absent or lacks a data type.

    The data type is float16, bfloat16, float32 or None. A CPU without bfloat16 instructions would emulate them, slowly.
    """
    check_device("device", device)
    kind = torch.device(device).type
    if dtype in (None, "float32"):
        return
    if dtype not in ("float16", "bfloat16"):
        fault = "expected float32, float16 or bfloat16"
    elif not torch.amp.is_autocast_available(kind):
        fault = f"torch has no autocast on {kind}; leave it out for float32"
    elif kind == "cpu" and dtype == "float16":
        fault = "it needs a GPU, and the device is a CPU; give bfloat16, or leave it out for float32"
    elif kind == "cpu" and not cpu_has_bfloat16():
        fault = (
            "this CPU has no instructions for bfloat16 (AVX-512 BF16, AMX or Arm's BF16), and torch would emulate them "
            "slowly; leave it out for float32"
        )
    else:
        return
    raise ConfigError(f"{option}: {fault}")


def cpu_has_bfloat16() -> bool:
    """Whether this CPU has instructions for bfloat16, as far as torch can tell."""
    if platform.machine().lower() in ("aarch64", "arm64"):
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    # On x86 the question above is only about AVX-512, which emulates bfloat16.
    return torch.cpu._is_avx512_bf16_supported()
