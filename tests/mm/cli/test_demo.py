"""`vitdense demo`: its commands, in order, until one fails."""

import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from vitdense.__main__ import main


@pytest.mark.parametrize(("statuses", "status"), [((0, 0, 0), 0), ((3,), 3), ((0, 2), 2)])
def test_commands_of_the_demo(monkeypatch, statuses, status):
    started, left = [], list(statuses)

    def start(words, **_):
        started.append(words)
        return SimpleNamespace(wait=lambda: left.pop(0))

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert main(["demo", "--overwrite", "--iters", "9"]) == status
    assert left == []
    assert [words[:4] for words in started] == [
        [sys.executable, "-m", "vitdense", name] for name in ("train", "predict", "test")[: len(statuses)]
    ]
    assert started[0][-3:] == ["--iters", "9", "--overwrite"]
    assert started[0][started[0].index("--work-dir") + 1] == "work_dirs/cascade_swin_nano_shapes"
    assert all(words[4] == "work_dirs/cascade_swin_nano_shapes" for words in started[1:])


def test_options_that_the_demo_cannot_follow_are_refused_before_it_trains(monkeypatch, capsys):
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(SystemExit, match="2"):
        main(["demo", "--cfg-options", "data_root=elsewhere"])
    assert "--cfg-options" in capsys.readouterr().err
