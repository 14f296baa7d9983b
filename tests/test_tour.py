"""The notebook docs/tour.ipynb runs from the first to the last cell."""

import ast
import re

import nbformat
import pytest
from commands import succeed
from conftest import REPO
from PIL import Image

pytestmark = pytest.mark.docs
TOUR = REPO / "docs/tour.ipynb"
CELLS = [cell for cell in nbformat.read(TOUR, as_version=4).cells if cell.cell_type == "code"]


def run_cell(source, names):
    """Run a cell, its commands in this process; return what its last line gives, None for a statement."""
    cell = ast.parse(re.sub(r"^!vitdense (.+) 2>&1 .*$", r'succeed(f"\1".split())', source, flags=re.M))
    shown = cell.body.pop() if isinstance(cell.body[-1], ast.Expr) else None
    exec(compile(cell, "cell", "exec"), names)
    return shown and eval(compile(ast.Expression(shown.value), "cell", "eval"), names)


def test_tour_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"succeed": succeed}
    shown = [run_cell(cell.source, names) for cell in CELLS]
    assert sum(isinstance(one, Image.Image) for one in shown) == 4
    assert not [*tmp_path.iterdir()]


def test_tour_is_stored_with_its_pictures():
    assert [cell.execution_count for cell in CELLS] == list(range(1, len(CELLS) + 1))
    outputs = [output for cell in CELLS for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 4
    assert not any(output.output_type == "error" for output in outputs)
    assert TOUR.stat().st_size < 1e6
