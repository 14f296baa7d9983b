"""The notebook docs/tour.ipynb runs from the first to the last cell, with a short training."""

import os
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest
from conftest import REPO

pytestmark = pytest.mark.docs
TOUR = REPO / "docs/tour.ipynb"
LENGTHS = "ITERATIONS, TRAIN_IMAGES, VAL_IMAGES = "


def outputs(cell):
    return [output.get("text", "") + "".join(output.get("data", {})) for output in cell.get("outputs", [])]


def test_tour_runs(tmp_path, monkeypatch):
    """Runs in a folder with the configs and tools of the repository, without its data."""
    for name in ("configs", "tools", "docs"):
        (tmp_path / name).symlink_to(REPO / name)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    tour = nbformat.read(TOUR, as_version=4)
    (lengths,) = (cell for cell in tour.cells if cell.source.startswith(LENGTHS))
    lengths.source = f"{LENGTHS}2, 4, 3\nPRETRAINED = False"
    nbclient.NotebookClient(tour, timeout=300, resources={"metadata": {"path": tmp_path}}).execute()
    printed = {cell.source: outputs(cell) for cell in tour.cells if cell.cell_type == "code"}
    assert any("mAP: " in text for texts in printed.values() for text in texts)  # trained and evaluated
    assert not any("error" in text for texts in printed.values() for text in texts)
    pictures = [source for source, texts in printed.items() if any("image/png" in text for text in texts)]
    assert len(pictures) == 5
    assert len(list((tmp_path / "work_dirs/tour/pictures").glob("*.jpg"))) == 3


def test_tour_is_stored_with_its_pictures():
    """The notebook as stored: outputs belong to the stored cells, and none is an error."""
    cells = [cell for cell in nbformat.read(TOUR, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert sum("image/png" in text for cell in cells for text in outputs(cell)) == 5
    assert not any(output.output_type == "error" for cell in cells for output in cell.outputs)
    assert TOUR.stat().st_size < 1e6
