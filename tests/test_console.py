"""Printing never raises."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPO

from vitdense.console import showing

WORK = """
import sys
from pathlib import Path
from vitdense.console import showing
with showing(), showing():
    for i in range(3000):
        print(i, "h\\u00fcndin", file=sys.stdout)
    sys.stdout.flush()
    print("to the other", file=sys.stderr)
    Path(sys.argv[1]).touch()
"""


def run(folder: Path, stdout: int, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", WORK, folder / "done"]
    env = {**os.environ, "PYTHONPATH": str(REPO), **environment}
    found = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, env=env, text=True, timeout=120)
    assert (folder / "done").exists()
    assert found.returncode == 0
    return found


def test_a_reader_that_is_gone(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    assert run(tmp_path, writer).stderr == "to the other\n"
    os.close(writer)


def test_a_process_without_a_console(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with showing():
        print("nowhere")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="of Linux")
def test_a_full_disk(tmp_path):
    with open("/dev/full", "w") as full:
        warning, other = run(tmp_path, full.fileno()).stderr.splitlines()
    assert warning.startswith("warning:")
    assert other == "to the other"


def test_an_encoding_without_the_characters(tmp_path):
    lines = run(tmp_path, subprocess.PIPE, PYTHONIOENCODING="ascii").stdout.splitlines()
    assert lines[:2] == ["0 h\\xfcndin", "1 h\\xfcndin"]
    assert len(lines) == 3000
