"""Shared fixtures. Importing vitdense first makes mmcv importable without a compiler."""

import gc
import json
import logging
import math
import random
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import vitdense  # noqa: F401

REPO = Path(__file__).parents[1]
HAS_RESEARCH = (REPO / "vitdense/research").is_dir()  # the floor can be deleted, with its tests, configs and pages
needs_research = pytest.mark.skipif(not HAS_RESEARCH, reason="no vitdense/research")
RECIPES = sorted(path for path in REPO.glob("configs/**/*.py") if "_base_" not in path.parts)
# Recipes that differ from a smaller one, of T, N, S or B, in numbers alone.
LARGER_NAMES = {re.sub("_t_", "_[sbl]_", path.stem) for path in RECIPES if "_t_" in path.stem}
LARGER_NAMES |= {"rfdetr_(seg_)?[sml]_coco", "lwdetr_[sm]_coco", "htcpp_swin_l_coco", "cascade_eva02_l_coco"}
LARGER_NAMES |= {"(eomt_dinov2|pmt_dinov3)_[bl]_640_coco_panoptic"}
LARGER = [path for path in RECIPES if any(re.fullmatch(pattern, path.stem) for pattern in LARGER_NAMES)]
# pytest attaches its handlers to loggers that do not propagate: torch then writes its traces, a fifth of the time of an
# export.
logging.getLogger("torch.__trace").propagate = True
PARITY_TABLE: list[str] = []  # printed at the end of a run with `pytest -s`


def pytest_collection_finish() -> None:
    """mmengine collects garbage for every data set: not among all that is imported, each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed():
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 -- timm's Mixup and mm's transforms draw from the global state
    torch.manual_seed(0)


@pytest.fixture(scope="module", autouse=True)
def _own_state_of_mmengine():
    """Runners leave a default scope, in which names are looked up, and a logger with its level behind."""
    if not find_spec("mmengine"):
        yield
        return
    from mmengine.logging import MMLogger
    from mmengine.registry import DefaultScope

    with pytest.MonkeyPatch.context() as patch:
        for kind in (DefaultScope, MMLogger):
            patch.setattr(kind, "_instance_dict", OrderedDict())
        yield


@pytest.fixture(scope="session")
def repo() -> Path:
    return REPO


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data and golden tensors next to the checkout; tests that need them skip without."""
    path = REPO.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("no ../shared/data")
    return path


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


def brute_force_attention(attention, x, size):
    """Shifted window attention written from the definition, query by query, in float64; or of positions alone."""
    spec, table = attention.spec, attention.bias.relative_position_bias_table.double().flatten(0, 1)
    (h, w), (wh, ww), (sh, sw), heads = size, spec.window, spec.shift, spec.num_heads
    hp, wp, d = -(-h // wh) * wh, -(-w // ww) * ww, spec.dim // spec.num_heads
    padded = torch.zeros(hp, wp, spec.dim, dtype=torch.float64)
    padded[:h, :w] = x[0]
    if hasattr(attention, "v"):
        qkv = torch.zeros(hp, wp, 3, heads, d, dtype=torch.float64)
        qkv[:, :, 2] = (padded @ attention.v.weight.T + attention.v.bias).view(hp, wp, heads, d)
    else:
        weight, bias = attention.qkv.weight.double(), attention.qkv.bias.double()
        qkv = (padded @ weight.T + bias).view(hp, wp, 3, heads, d)

    def place(y, n, window, shift):  # of a padded row or column: window, position inside it, band after the roll
        rolled = (y - shift) % n
        return rolled // window, rolled % window, (rolled >= n - window) + (rolled >= n - shift)

    out = torch.zeros(h, w, heads, d, dtype=torch.float64)
    for y in range(h):
        for z in range(w):
            (wy, py, by), (wz, pz, bz) = place(y, hp, wh, sh), place(z, wp, ww, sw)
            keys = [
                (ky, kz)
                for ky in range(hp)
                for kz in range(wp)
                if place(ky, hp, wh, sh)[0] == wy and place(kz, wp, ww, sw)[0] == wz
            ]
            for head in range(heads):
                logits = []
                for ky, kz in keys:
                    _, ry, cy = place(ky, hp, wh, sh)
                    _, rz, cz = place(kz, wp, ww, sw)
                    row = (py - ry + wh - 1) * (2 * ww - 1) + pz - rz + ww - 1
                    mask = 0 if not (sh or sw) or (cy, cz) == (by, bz) else -100
                    dot = qkv[y, z, 0, head] @ qkv[ky, kz, 1, head]
                    logits.append(dot / math.sqrt(d) + table[row, head] + mask)
                share = torch.stack(logits).softmax(0)
                out[y, z, head] = sum(s * qkv[ky, kz, 2, head] for s, (ky, kz) in zip(share, keys))
    return out.flatten(2) @ attention.proj.weight.double().T + attention.proj.bias.double()


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Frobenius norm of the difference over that of `want`."""
    return float((got - want).norm() / want.norm())


def run_ranks(function: Callable, *args: object) -> None:
    """Run `function(rank, *args)` in two processes; raise what one of them raised, and fail if they hang."""
    workers = torch.multiprocessing.spawn(function, args=args, nprocs=2, join=False)
    try:
        finished = [workers.join(timeout=300) for _ in workers.processes]  # returns when a process ends
        assert finished[-1], "the processes hang"
    finally:
        for process in workers.processes:
            process.kill()


def add_row(family: str, scheme: str, source: str, errors: Iterable[float], share: float, back: str) -> None:
    """A row of the parity table: what was compared, its errors per output, the share of loaded values, the way back."""
    errors = ", ".join(f"{e:.1e}" for e in errors)
    PARITY_TABLE.append(f"{family:12} {scheme:12} {source:43} {errors:38} {100 * share:6.2f} %  {back}")


def pytest_terminal_summary(terminalreporter, config) -> None:
    if PARITY_TABLE and config.getoption("capture") == "no":
        header = f"{'family':12} {'names':12} {'from':43} {'relative error per output':38} {'loaded':>8}  back"
        terminalreporter.write_line("\n".join([header, *PARITY_TABLE]))
