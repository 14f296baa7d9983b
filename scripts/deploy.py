"""The forms in which a model runs on a CPU, timed in turn: eager, compiled, in onnxruntime, in OpenVINO."""

import platform
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from vitdense.export.int8 import quantise
from vitdense.export.onnx import save_onnx
from vitdense.export.program import export_program, largest_error
from vitdense.files import read_text
from vitdense.layers.onednn import OneDnnLinear, has_onednn, is_glibc, keep_memory
from vitdense.mm.precision import cpu_has_bfloat16

Run = Callable[[Tensor], object]
WARM = 3  # after another form, caches are cold and memory that is kept has yet to grow
BOUNDS = {"float32": 1e-4, "bfloat16": 0.05, "int8": 0.2}  # relative error of maps, against eager float32


@dataclass(frozen=True)
class Form:
    """A way of running a model.

    Attributes:
        name: In the table.
        build: Of a model, its forward pass, an image and a folder for files: what takes the image.
        dtype: In which it computes.
        context: In which it runs.
        of_peer: Whether other projects' models run so.
    """

    name: str
    build: Callable[[nn.Module, Run, Tensor, Path], Run]
    dtype: str = "float32"
    context: Callable = torch.no_grad
    of_peer: bool = True


@contextmanager
def tuned() -> Iterator[None]:
    """As `vitdense predict` runs a model."""
    with torch.no_grad(), OneDnnLinear():
        keep_memory()
        try:
            yield
        finally:
            keep_memory(False)


@contextmanager
def tuned_bfloat16() -> Iterator[None]:
    """As `vitdense test --amp bfloat16` runs a model."""
    with tuned(), torch.autocast("cpu", torch.bfloat16):
        yield


def _eager(model: nn.Module, run: Run, x: Tensor, folder: Path) -> Run:
    return run


def _compiled(model: nn.Module, run: Run, x: Tensor, folder: Path) -> Run:
    return torch.compile(run, dynamic=False)


def _onnx(model: nn.Module, run: Run, x: Tensor, folder: Path) -> Path:
    """The ONNX file of a model for images of one size, written once."""
    path = folder / f"{id(model)}.onnx"
    if not path.exists():
        save_onnx(export_program(model, x, dynamic=False), path)
    return path


def _onnx_int8(model: nn.Module, run: Run, x: Tensor, folder: Path) -> Path:
    """The same in int8, calibrated on this image."""
    path = folder / f"{id(model)}.int8.onnx"
    if not path.exists():
        shutil.copy(_onnx(model, run, x, folder), path)
        quantise(path, [x.numpy()])
    return path


def _onnxruntime(model: nn.Module, run: Run, x: Tensor, folder: Path, file: Callable = _onnx) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(file(model, run, x, folder), options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"image": x.numpy()})


def _openvino(model: nn.Module, run: Run, x: Tensor, folder: Path, precision: str, file: Callable = _onnx) -> Run:
    import openvino

    options = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    compiled = openvino.Core().compile_model(file(model, run, x, folder), "CPU", options)
    return lambda x: [*compiled([x.numpy()]).values()]


def forms() -> list[Form]:
    """The forms that this machine can run."""
    found = [Form("eager", _eager)]
    if has_onednn() and is_glibc():
        found += [Form("eager, oneDNN, memory kept", _eager, context=tuned)]
    if cpu_has_bfloat16():
        found += [Form("eager bfloat16, memory kept", _eager, "bfloat16", tuned_bfloat16)]
    # torch 2.11 makes C++ of mmdet's Swin that no compiler takes.
    found += [Form("compiled", _compiled, of_peer=False), Form("onnxruntime", _onnxruntime)]
    found += [Form("onnxruntime int8", partial(_onnxruntime, file=_onnx_int8), "int8")]
    if find_spec("openvino"):
        found += [Form("OpenVINO", partial(_openvino, precision="f32"))]
        if cpu_has_bfloat16():
            found += [Form("OpenVINO bfloat16", partial(_openvino, precision="bf16"), "bfloat16")]
        found += [Form("OpenVINO int8", partial(_openvino, precision="f32", file=_onnx_int8), "int8")]
    return found


def time_forms(
    models: Mapping[str, tuple[nn.Module, Run]], x: Tensor, folder: Path, rounds: int
) -> dict[tuple[str, str], list[float]]:
    """Seconds of every round, by form and model. A round runs each once, after `WARM` runs that are not timed.

    Args:
        models: Ours, then the peer; in eval mode, each with its forward pass, by name.
        x: An image.
        folder: For exported files.
        rounds: Timed rounds.

    Raises:
        ValueError: The maps of a form differ from the model's.
    """
    runs = {}
    ours = next(iter(models))
    for name, (model, run) in models.items():
        with torch.no_grad():
            want = run(x)
        for form in (form for form in forms() if form.of_peer or name == ours):
            with torch.no_grad():
                runs[form, name] = form.build(model, run, x, folder)
            with form.context():
                error = largest_error(runs[form, name](x), want)
            if not error < BOUNDS[form.dtype]:
                raise ValueError(f"{form.name} of {name}: error {error:.2g}, expected below {BOUNDS[form.dtype]}")
    seconds: dict[tuple[str, str], list[float]] = {(form.name, name): [] for form, name in runs}
    for _ in range(rounds):
        for (form, name), run in runs.items():
            with form.context():
                for _ in range(WARM):
                    run(x)
                start = time.perf_counter()
                run(x)
                seconds[form.name, name].append(time.perf_counter() - start)
    return seconds


def speeds(seconds: Mapping[tuple[str, str], list[float]], ours: str, peer: str) -> dict[str, dict[str, float | None]]:
    """By form: median seconds of both models; median of the rounds' ratios of our speed to the peer's as it comes, and
    in the same form. None where the peer does not run so."""
    first = next(form for form, _ in seconds)

    def ratio(form: str, other: str) -> float | None:
        if (other, peer) not in seconds:
            return None
        return statistics.median(b / a for a, b in zip(seconds[form, ours], seconds[other, peer], strict=True))

    return {
        form: {
            ours: statistics.median(seconds[form, ours]),
            peer: statistics.median(seconds[form, peer]) if (form, peer) in seconds else None,
            "against the peer as it comes": ratio(form, first),
            "in the same form": ratio(form, form),
        }
        for form in dict.fromkeys(form for form, _ in seconds)
    }


def table(rows: Mapping[str, Mapping[str, float | None]]) -> str:
    """A Markdown table of `speeds`."""
    heads = [*next(iter(rows.values()))]
    lines = [
        f"| | {heads[0]}, s | {heads[1]}, s | speed against {heads[1]} as it comes | in the same form |",
        "|---|---|---|---|---|",
    ]
    for form, row in rows.items():
        cells = ("-" if value is None else f"{value:.2f}" for value in row.values())
        lines.append(f"| {form} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cpu_name() -> str:
    """What the system calls the CPU, and its vectors."""
    info = Path("/proc/cpuinfo")
    names = (
        [line.split(": ")[1] for line in read_text(info).splitlines() if "model name" in line] if info.exists() else []
    )
    return f"{next(iter(names), platform.processor())}, {torch.backends.cpu.get_cpu_capability()}"
