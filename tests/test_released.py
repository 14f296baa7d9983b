"""What earlier versions wrote: each later one loads it, tests to the same figures, resumes, exports and verifies.

An archive is written once, when its version is closed: ``python scripts/released.py tests/data/released/X.tar.xz``.
"""

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from conftest import REPO

import vitdense
from vitdense.__main__ import main
from vitdense.extensions.proof.verify import main as verify
from vitdense.runtime import Program

pytestmark = pytest.mark.long

ARCHIVES = sorted((REPO / "tests/data/released").glob("*.tar.xz"))
DETECTOR, PANOPTIC = "cascade_swin_nano_shapes", "eomt_nano_shapes"
NAMES = (DETECTOR, "upernet_swin_nano_shapes", "rfdetr_nano_shapes", PANOPTIC)


@pytest.fixture(scope="module", params=ARCHIVES, ids=lambda path: path.name)
def written(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("released")
    with tarfile.open(request.param) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(params=NAMES)
def work(request, written, monkeypatch):
    monkeypatch.chdir(written)  # the data are drawn here
    return Path(request.param)


def test_it_finds_the_same(work):
    found = vitdense.load(work, score_thr=0.0)("photo.jpg")
    want = np.load(work / "found.npz")
    assert want.files
    for name in want.files:
        got = getattr(found, name)
        assert got.shape == want[name].shape, name
        if got.dtype.kind == "f":
            np.testing.assert_allclose(got, want[name], atol=1e-3 if name == "boxes" else 1e-5)
        else:
            assert (got == want[name]).mean() > 0.999, name


def test_its_figures_are_the_same(work):
    assert main(["test", str(work), "--out", "again.json"]) == 0
    want, got = (json.loads(Path(path).read_text()) for path in (work / "metrics.json", "again.json"))
    assert want
    assert {key: got[key] for key in want} == pytest.approx(want, abs=1e-6)


def test_its_training_goes_on(work):
    want = json.loads((work / "next.json").read_text())
    (config,) = work.glob("*.py")
    assert main(["train", str(config), "--work-dir", str(work), "--resume"]) == 0
    (rows,) = work.glob("*/vis_data/scalars.json")
    losses = {row["step"]: row["loss"] for row in map(json.loads, rows.read_text().splitlines()) if "loss" in row}
    assert losses == {want["iter"]: pytest.approx(want["loss"], rel=1e-4)}  # other sums of other machines


def test_its_program_computes_the_same(work):
    assert verify([str(work / "program.onnx")]) == 0
    found = Program(work / "program.onnx")(np.zeros((64, 64, 3), np.uint8))
    assert (found.boxes is None) == (work.name == "upernet_swin_nano_shapes") or work.name == PANOPTIC


def test_it_is_exported_anew(work):
    assert main(["export", str(work), "--to", "onnx", "--out", f"{work}.onnx", "--unchecked"]) == 0
    assert verify([f"{work}.onnx"]) == 0
