"""The notebook docs/tour.ipynb runs from the first to the last cell."""

import os
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest
from conftest import REPO

pytestmark = pytest.mark.docs
TOUR = REPO / "docs/tour.ipynb"


def outputs(cell):
    return [output.get("text", "") + "".join(output.get("data", {})) for output in cell.get("outputs", [])]


def test_tour_runs(tmp_path, monkeypatch):
    """Runs in an empty folder."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    tour = nbformat.read(TOUR, as_version=4)
    nbclient.NotebookClient(tour, timeout=300, resources={"metadata": {"path": tmp_path}}).execute()
    printed = [text for cell in tour.cells if cell.cell_type == "code" for text in outputs(cell)]
    assert not any("error" in text for text in printed)
    assert sum("image/png" in text for text in printed) == 4
    assert not [*tmp_path.iterdir()]


def test_tour_is_stored_with_its_pictures():
    """The notebook as stored: outputs belong to the stored cells, and none is an error."""
    cells = [cell for cell in nbformat.read(TOUR, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert sum("image/png" in text for cell in cells for text in outputs(cell)) == 4
    assert not any(output.output_type == "error" for cell in cells for output in cell.outputs)
    assert TOUR.stat().st_size < 1e6
