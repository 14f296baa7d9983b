"""Shared fixtures. Importing vitdense first makes mmcv importable without a compiler."""

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import vitdense  # noqa: F401

REPO = Path(__file__).parents[1]
RECIPES = sorted(path for path in REPO.glob("configs/**/*.py") if "_base_" not in path.parts)
PARITY_TABLE: list[str] = []  # printed at the end of a run with `pytest -s`


@pytest.fixture(autouse=True)
def _seed():
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


@pytest.fixture(scope="session")
def shared_golden(shared_data) -> Callable[[str], tuple[dict, dict[str, torch.Tensor]]]:
    """Read a golden file of the shared data by its name: configuration and tensors."""

    def read(name: str) -> tuple[dict, dict[str, torch.Tensor]]:
        path = shared_data / f"golden/{name}.safetensors"
        if not path.is_file():
            pytest.skip(f"no {path.name}")
        with safe_open(path, "pt") as file:
            return json.loads(file.metadata()["config"]), load_file(path)

    return read


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
    PARITY_TABLE.append(f"{family:8} {scheme:12} {source:43} {errors:38} {100 * share:6.2f} %  {back}")


def pytest_terminal_summary(terminalreporter, config) -> None:
    if PARITY_TABLE and config.getoption("capture") == "no":
        header = f"{'family':8} {'names':12} {'from':43} {'relative error per output':38} {'loaded':>8}  back"
        terminalreporter.write_line("\n".join([header, *PARITY_TABLE]))
