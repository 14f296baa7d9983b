"""`vitdense demo`: its commands, in order, until one fails."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from vitdense.__main__ import main


@pytest.mark.parametrize(("statuses", "status"), [((0, 0, 0), 0), ((3,), 3), ((0, 2), 2)])
def test_commands_of_the_demo(monkeypatch, statuses, status):
    started, left = [], list(statuses)

    def run(words):
        started.append(words)
        return SimpleNamespace(returncode=left.pop(0))

    monkeypatch.setattr(subprocess, "run", run)
    assert main(["demo", "--overwrite", "--iters", "9"]) == status
    assert left == []
    assert [words[:4] for words in started] == [
        [sys.executable, "-m", "vitdense", name] for name in ("train", "predict", "test")[: len(statuses)]
    ]
    assert started[0][-3:] == ["--overwrite", "--iters", "9"]
    assert started[0][started[0].index("--work-dir") + 1] == "work_dirs/cascade_swin_nano_shapes"
    assert all(words[4] == "work_dirs/cascade_swin_nano_shapes" for words in started[1:])
