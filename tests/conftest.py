"""Shared fixtures. Importing vitdense first makes mmcv importable without a compiler."""

import copy
import fcntl
import gc
import itertools
import json
import logging
import math
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from packaging.version import Version
from safetensors import safe_open
from safetensors.torch import load_file

import vitdense  # noqa: F401
from vitdense.flops import macs, num_params

REPO = Path(__file__).parents[1]
HAS_RESEARCH = (REPO / "vitdense/research").is_dir()  # the floor can be deleted, with its tests, configs and pages
needs_research = pytest.mark.skipif(not HAS_RESEARCH, reason="no vitdense/research")
# By name: the last one is in the folder of its extension, another where 0.3 had it.
RECIPES = {path.stem: path for path in sorted(REPO.glob("configs/**/*.py")) if "_base_" not in path.parts}
RECIPES = sorted(RECIPES.values())
# Recipes that differ from a smaller one, of T, N, S or B, in numbers alone.
LARGER_NAMES = {re.sub("_t_", "_[sbl]_", path.stem) for path in RECIPES if "_t_" in path.stem}
LARGER_NAMES |= {"rfdetr_(seg_)?[sml]_coco", "lwdetr_[sm]_coco", "htcpp_swin_l_coco", "cascade_eva02_l_coco"}
LARGER_NAMES |= {"(eomt_dinov2|pmt_dinov3)_[bl]_640_coco_panoptic"}
LARGER = [path for path in RECIPES if any(re.fullmatch(pattern, path.stem) for pattern in LARGER_NAMES)]
# pytest attaches its handlers to loggers that do not propagate: torch then writes its traces, a fifth of the time of an
# export.
logging.getLogger("torch.__trace").propagate = True
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background, Ctrl-C is ignored
PARITY_TABLE: list[str] = []  # printed at the end of a run with `pytest -s`
collect_ignore = [] if find_spec("onnxscript") else ["mm/export"]
if not find_spec("mmseg"):  # mm is an extra: what needs torch alone
    collect_ignore = ["extensions", "faults", "mm", "pairs", "peers", "research", "scripts", "tools"]
    collect_ignore += [path.name for path in Path(__file__).parent.glob("test_*.py") if path.stem != "test_module"]


def pytest_collection_finish() -> None:
    """mmengine collects garbage for every data set: not among all that is imported, each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed():
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 -- timm's Mixup and mm's transforms draw from the global state
    torch.manual_seed(0)


KEPT: dict = {}  # recipes and their bases, which mmengine executes each time: most of what it takes to load one


def reading_once(read: Callable) -> Callable:
    def read_once(filename, *args, **options):
        if not Path(filename).is_relative_to(REPO / "configs"):
            return read(filename, *args, **options)
        key = (filename, args, *options.items())
        KEPT[key] = KEPT.get(key) or read(filename, *args, **options)
        return copy.deepcopy(KEPT[key])

    return read_once


@pytest.fixture(scope="module", autouse=True)
def _own_state_of_mmengine():
    """Runners leave a default scope, in which names are looked up, and a logger with its level behind."""
    if not find_spec("mmengine"):
        yield
        return
    from mmengine.config import Config
    from mmengine.logging import MMLogger
    from mmengine.registry import DefaultScope

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Config, "_file2dict", staticmethod(reading_once(Config._file2dict)))
        for kind in (DefaultScope, MMLogger):
            patch.setattr(kind, "_instance_dict", OrderedDict())
        yield


@pytest.fixture(scope="session")
def repo() -> Path:
    return REPO


@pytest.fixture(scope="session")
def shared_data() -> Path:
    path = REPO.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("no ../shared/data")
    return path


def made_once(tmp_path_factory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that the first test of the run that needs it fills by `make`, whatever process it is in."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            make(folder)
            (folder / "made").touch()
    return folder


def drawn(generators: dict[str, list]) -> dict[str, torch.Tensor]:
    """Random tensors by name: of every seed, what its generator draws in turn, times a factor, plus an offset."""
    found = {}
    for seed, rows in generators.items():
        generator = torch.Generator().manual_seed(int(seed))
        for name, kind, shape, factor, offset in rows:
            found[name] = getattr(torch, kind)(shape, generator=generator) * factor + offset
    found.pop(None, None)  # what was drawn in between
    return found


@pytest.fixture(scope="session")
def golden_file(request) -> Callable[[str], tuple[dict, dict[str, torch.Tensor]]]:
    """Read a golden file by its name: configuration and tensors. Those of tests/data/drawn have random weights and
    inputs as they were drawn; others are next to the checkout."""

    def read(name: str) -> tuple[dict, dict[str, torch.Tensor]]:
        path = REPO / f"tests/data/drawn/{name}.safetensors"
        if not path.is_file():
            path = request.getfixturevalue("shared_data") / f"golden/{name}.safetensors"
        if not path.is_file():
            pytest.skip(f"no {path.name}")
        with safe_open(path, "pt") as file:
            meta = file.metadata()
            return json.loads(meta["config"]), load_file(path) | drawn(json.loads(meta.get("drawn", "{}")))

    return read


def attend_windows_by_hand(spec, size: tuple[int, int], qkv: torch.Tensor, logit: Callable) -> torch.Tensor:
    """Attention in shifted windows from the definition, query by query.

    Of the queries, keys and values ``[hp, wp, 3, heads, d]`` of a padded map, to ``[h, w, heads d]``; `logit` takes a
    query and a key ``[d]``, their offset (rows, columns), and the number of the head.
    """

    def place(y, n, window, shift):  # of a padded row or column: window, position inside it, band after the roll
        rolled = (y - shift) % n
        return rolled // window, rolled % window, shift and (rolled >= n - window) + (rolled >= n - shift)

    padded = qkv.shape[:2]
    places = {  # windows, positions and bands of both axes
        at: [*zip(*(place(*axis) for axis in zip(at, padded, spec.window, spec.shift)))]
        for at in itertools.product(*map(range, padded))
    }
    out = torch.zeros(*size, *qkv.shape[3:], dtype=qkv.dtype)
    for y, z in itertools.product(*map(range, size)):
        window, position, band = places[y, z]
        keys = [at for at, (of_key, *_) in places.items() if of_key == window]
        for head in range(qkv.shape[3]):
            logits = []
            for at in keys:
                offset = [a - b for a, b in zip(position, places[at][1])]
                mask = 0 if places[at][2] == band else -100  # adjacent by the roll alone
                logits.append(logit(qkv[y, z, 0, head], qkv[at][1, head], offset, head) + mask)
            shares = torch.stack(logits).softmax(0)
            out[y, z, head] = sum(share * qkv[at][2, head] for share, at in zip(shares, keys))
    return out.flatten(2)


def padded_to_windows(spec, x: torch.Tensor) -> torch.Tensor:
    (h, w), (wh, ww) = x.shape[:2], spec.window
    return torch.nn.functional.pad(x.double(), (0, 0, 0, -w % ww, 0, -h % wh))


def brute_force_attention(attention, x, size):
    spec, table = attention.spec, attention.bias.relative_position_bias_table.double().flatten(0, 1)
    padded, (wh, ww) = padded_to_windows(spec, x[0]), spec.window
    if hasattr(attention, "v"):
        values = padded @ attention.v.weight.T + attention.v.bias
        qkv = torch.cat([torch.zeros_like(padded).repeat(1, 1, 2), values], dim=-1)
    else:
        qkv = padded @ attention.qkv.weight.double().T + attention.qkv.bias.double()

    def logit(q, k, offset, head):
        row = (offset[0] + wh - 1) * (2 * ww - 1) + offset[1] + ww - 1
        return q @ k / math.sqrt(len(q)) + table[row, head]

    out = attend_windows_by_hand(spec, size, qkv.unflatten(-1, (3, spec.num_heads, -1)), logit)
    return out @ attention.proj.weight.double().T + attention.proj.bias.double()


def timm_since(first: str) -> pytest.MarkDecorator:
    """A mark of what is compared with a part of timm that older versions, which the package allows, lack."""
    return pytest.mark.skipif(Version(version("timm")) < Version(first), reason=f"needs timm {first} or later")


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Relative error: Frobenius norm of the difference over the norm of `want`."""
    return float((got - want).norm() / want.norm())


def run_python(code: str, *args: object, folder: Path = REPO, status: int = 0) -> subprocess.CompletedProcess:
    """Run code in a process of its own, which ends with this status."""
    command = [sys.executable, "-c", code, *map(str, args)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done


def of_prefix(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def assert_same_tensors(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    """The same names and bits. Either may be the state dict of a model."""
    assert got.keys() == want.keys()
    for key, value in want.items():
        assert got[key].dtype == value.dtype, key
        assert torch.equal(got[key], value), key


def without_output_norms(model: torch.nn.Module) -> torch.nn.Module:
    """Whose maps are those of a classifier: before any norm."""
    for i in model.out_indices:
        setattr(model, f"norm{i}", torch.nn.Identity())
    return model.eval()


def classifier_totals(make: Callable, image: int = 224, heads: int = 1) -> tuple[float, float]:
    """Millions of parameters and billions of multiply-adds of a backbone as a classifier: in place of output norms it
    has one after its last map, and heads of 1000 classes."""
    with torch.device("meta"), torch.no_grad():
        model = make().eval()
        _, cost = macs(lambda: model(torch.empty(1, 3, image, image)))
    dim = model.out_channels[-1]
    norms = sum(p.numel() for name, p in model.named_parameters() if re.match(r"norm\d*\.", name))
    added = 1000 * (dim + 1) * heads
    return (num_params(model) - norms + 2 * dim * (norms > 0) + added) / 1e6, (cost + added) / 1e9


def run_ranks(function: Callable, *args: object, ranks: int = 2) -> None:
    """Run `function(rank, *args)` in processes; raise what one of them raised, and fail if they hang.

    They come from a process that has imported the packages, once for all tests.
    """
    multiprocessing.set_forkserver_preload(["vitdense.registry", "mmdet.models", "mmseg.models"])
    workers = torch.multiprocessing.start_processes(
        function, args=args, nprocs=ranks, join=False, start_method="forkserver"
    )
    try:
        finished = [workers.join(timeout=300) for _ in workers.processes]  # returns when a process ends
        assert finished[-1], "the processes hang"
    finally:
        for process in workers.processes:
            process.kill()


def add_row(family: str, scheme: str, source: str, errors: Iterable[float], share: float, back: str) -> None:
    errors = ", ".join(f"{e:.1e}" for e in errors)
    PARITY_TABLE.append(f"{family:12} {scheme:12} {source:43} {errors:38} {100 * share:6.2f} %  {back}")


def pytest_terminal_summary(terminalreporter, config) -> None:
    if PARITY_TABLE and config.getoption("capture") == "no":
        header = f"{'family':12} {'names':12} {'from':43} {'relative error per output':38} {'loaded':>8}  back"
        terminalreporter.write_line("\n".join([header, *PARITY_TABLE]))
