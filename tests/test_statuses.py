"""Exit statuses, as docs/troubleshooting.md has them: 0 done, 2 refused, 128 + the number of the signal."""

import importlib
import pkgutil
import signal
from pathlib import Path

import pytest
from commands import run_command

import vitdense
from vitdense import seams
from vitdense.__main__ import COMMANDS
from vitdense.errors import OptionError

RECIPE, FILE = "cascade_swin_nano_shapes", "weights.pth"
TRAINED = [RECIPE, FILE]
NEW = "new detection --train a.json --val b.json --images c --base cascade_swin_nano_coco mine.py"
# Command: words, what does its work, and what that gives when all is well.
WORK = {
    "new": (NEW.split(), "vitdense.mm.config.own_data.read", None),
    "check": (["check", RECIPE], "vitdense.mm.checks.report.look", ([], [])),
    "train": (["train", RECIPE], "vitdense.mm.train.launch.train", None),
    "demo": (["demo"], "vitdense.mm.train.launch.train", None),
    "test": (["test", *TRAINED], "vitdense.mm.train.launch.test", {}),
    "predict": (["predict", *TRAINED, "a.jpg"], "vitdense.mm.cli.predict.predict", Path("out")),
    "export": (["export", *TRAINED, "--to", "pt2"], "vitdense.mm.cli.export.export", "written"),
    "swap": (["swap", RECIPE, "--backbone", "swin_tiny"], "vitdense.mm.config.load.load_config", None),
    "convert": (["convert", FILE, "b.pth", "--to", "timm"], "vitdense.checkpoint.read.read", None),
    "flops": (["flops", RECIPE], "vitdense.mm.config.load.config_of", None),
    "benchmark": (["benchmark"], "measuring.models_of", None),
    "plot": (["plot", "work"], "vitdense.extensions.curves.curves.draw_curves", Path("curves.png")),
    "doctor": (["doctor"], "vitdense.__main__.report", 0),
    "show": (["show", *TRAINED, "a.jpg"], "vitdense.extensions.show.sheet.contact_sheet", None),
    "verify": (["verify", "a.onnx"], "vitdense.extensions.proof.verify.verify", (True, "same")),
}
DONE, REFUSED = 0, 2
SIGNALS = (128 + signal.SIGINT, 128 + signal.SIGTERM)
STATUSES = {
    **dict.fromkeys(WORK, (DONE, REFUSED, *SIGNALS)),
    # Their own tests run these.
    **dict.fromkeys(("new", "demo", "convert", "swap", "flops", "benchmark"), (REFUSED, *SIGNALS)),
    **{"verify": (DONE, REFUSED, SIGNALS[0]), "doctor": (DONE, SIGNALS[0])},  # SIGTERM ends these as any process
}
ROWS = [
    (name, status) for name in (*COMMANDS, *seams.merged("commands"), "doctor") for status in STATUSES.get(name, ())
]


@pytest.fixture(scope="module", autouse=True)
def _all_imported():
    """No module imports what a test replaces."""
    for module in pkgutil.walk_packages(vitdense.__path__, "vitdense."):
        importlib.import_module(module.name)


def test_every_command_has_a_row():
    assert {*COMMANDS, *seams.merged("commands")} == {name for name, _ in ROWS} - {"doctor"}


@pytest.mark.parametrize(("command", "status"), ROWS)
def test_status(command, status, monkeypatch, tmp_path):
    words, work, found = WORK[command]

    def do(*args, **options):
        if status > 128:
            signal.raise_signal(status - 128)
        if status == REFUSED:
            raise OptionError("got this, expected that")
        return found

    monkeypatch.chdir(tmp_path)
    Path(FILE).touch()
    monkeypatch.setattr(work, do)
    got, text = run_command(words)
    assert (got, "Traceback" in text) == (status, False), text
    if status == REFUSED:
        assert text.splitlines()[-1].startswith("error: got this, expected that")
    elif status:
        assert text.splitlines()[-1].startswith("stopped")
    assert not {path.name for path in tmp_path.iterdir()} - {FILE, "work_dirs"}
