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
HALF = tuple(getattr(torch, name) for name in AMP_DTYPES)


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


def keep_places(model: nn.Module) -> None:
    """Let a model of mm, which may be wrapped, compute places in float32 under autocast: anchors, points, proposals,
    RoIs, reference points and boxes.

    Half types have fewer places than images pixels: of bfloat16 every 4th from 512 on. mmdet makes or casts places in
    the data type of what lies next to them, so hooks of its modules widen that:

    - outputs of dense heads and box heads: anchors and points get their type, and boxes are decoded in it;
    - maps that RoIs are cast to, and values that the sampling locations of deformable attention are cast to;
    - maps that give learned proposals the size of the image;
    - outputs of layers that predict a point or a box, 2 or 4 numbers: heads of queries add references to them in place.

    Layers compute in half precision as before. Results are in float32 as well: metrics, tiles and pictures go on with
    NumPy, which has no bfloat16.

    `build_model` and our `Runner` call this for every model; `KeepPlacesHook` where another runner runs a recipe. mmdet
    casts RoIs before it calls an op and leaves no seam in ``init_detector``: who runs that model under an autocast of
    his own, or a config without the hook in mmdet's tools, calls this.
    """
    while isinstance(inner := getattr(model, "module", None), nn.Module):
        model = inner
    if _results_as_float32 in model._forward_hooks.values():
        return
    model.register_forward_hook(_results_as_float32)
    for part in model.modules():
        children = dict(part.named_children())
        if hasattr(part, "prior_generator") or hasattr(part, "bbox_coder"):
            part.register_forward_hook(_widen_outputs)
        if hasattr(part, "roi_layers"):
            part.register_forward_pre_hook(_widen_inputs_under_autocast)
        if hasattr(part, "im2col_step") and "value_proj" in children:  # mmcv's multi-scale deformable attention
            part.value_proj.register_forward_hook(_widen_under_autocast)
        if hasattr(children.get("rpn_head"), "init_proposal_bboxes") and "neck" in children:
            part.neck.register_forward_hook(_widen_under_autocast)
        if "bbox_head" in children:
            part.bbox_head.register_forward_hook(_widen_outputs)
            for name, layer in part.named_modules():
                size = getattr(layer, "out_features", getattr(layer, "out_channels", None))
                if isinstance(layer, nn.Linear | nn.Conv2d) and size in (2, 4) and "backbone" not in name.split("."):
                    layer.register_forward_hook(_widen_under_autocast)


def _widen_outputs(head: nn.Module, args: tuple, outputs: Any) -> Any:
    return tree_map_only(Tensor, lambda x: x.float() if x.dtype in HALF else x, outputs)


# Under autocast only: in a model that is in half precision itself, the next layer takes nothing else.


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in HALF and torch.is_autocast_enabled(x.device.type) else x


def _widen_under_autocast(module: nn.Module, args: tuple, outputs: Any) -> Any:
    return tree_map_only(Tensor, _wide, outputs)


def _widen_inputs_under_autocast(module: nn.Module, args: tuple) -> tuple:
    return tree_map_only(Tensor, _wide, args)


def _results_as_float32(module: nn.Module, args: tuple, outputs: Any) -> None:
    samples = outputs if isinstance(outputs, list) else []  # otherwise losses or maps
    for part in (part for sample in samples if isinstance(sample, BaseDataElement) for part in sample.values()):
        for name, value in part.items() if isinstance(part, BaseDataElement) else ():
            if isinstance(value, Tensor) and value.is_floating_point():
                setattr(part, name, value.float())


def check_device(option: str, device: str) -> None:
    """Raise if torch does not find a device on this machine.

    Args:
        option: For the message.
        device: ``cpu``, ``cuda`` or ``cuda:N``; or another kind that this torch has, such as ``mps``.

    Raises:
        ConfigError: There is no such device.
    """
    kinds = {kind: _number_of(kind) for kind in ("cpu", "cuda", "mps", "xpu")}
    try:
        found = torch.device(device)
        is_there = (found.index or 0) < kinds.get(found.type, 0)
    except (RuntimeError, TypeError):  # torch's, for a kind that it does not know
        is_there = False
    if not is_there:
        having = [f"{kind}:{i}" if count > 1 else kind for kind, count in kinds.items() for i in range(count)]
        raise ConfigError(
            f"{option}: got {device!r}, expected one that torch finds on this machine: {', '.join(having)}"
        )


def _number_of(kind: str) -> int:
    module = getattr(torch, kind, None)
    return module.device_count() if module is not None else 0


def check_precision(option: str, dtype: str | None, device: str) -> None:
    """Raise if a device does not compute in a data type.

    Args:
        option: For the message.
        dtype: One of `AMP_DTYPES`; ``float32`` or None.
        device: See `check_device`.

    Raises:
        ConfigError: It is another data type; or float16 on a CPU; or this CPU has no instructions for bfloat16: torch
            would emulate them, in several times the time of float32. See also `check_device`.
    """
    check_device("device", device)
    if dtype not in (None, "float32", *AMP_DTYPES):
        raise ConfigError(f"{option}: expected float32, {' or '.join(AMP_DTYPES)}")
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
