"""Shared fixtures. Importing vitdense first makes mmcv importable without a compiler."""

from pathlib import Path

import pytest
import torch

import vitdense  # noqa: F401

REPO = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def repo() -> Path:
    return REPO


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data and golden tensors beside the checkout; tests that need them skip without."""
    path = REPO.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("no ../shared/data")
    return path


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Frobenius norm of the difference over that of `want`."""
    return float((got - want).norm() / want.norm())
