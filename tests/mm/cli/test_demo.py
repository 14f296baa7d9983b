"""`vitdense demo`: its commands, in order, until one fails, and what it says at the end."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import run_command
from mmengine.logging import MMLogger

from vitdense.mm.cli import demo
from vitdense.mm.data import shapes
from vitdense.mm.train.hooks import ProgressHook

FOLDER = f"work_dirs/{demo.RECIPE}"


@pytest.mark.parametrize(("statuses", "again"), [((0, 0, 0), "--overwrite"), ((3,), "--resume"), ((0, 2), "--resume")])
def test_commands_of_the_demo(statuses, again, tmp_path, monkeypatch):
    started, left = [], list(statuses)

    def run(name, words):
        started.append((name, words))
        if name == "test":
            Path(words[-1]).parent.mkdir(parents=True)
            Path(words[-1]).write_text(json.dumps({"coco/bbox_mAP": 0.314}))
        return left.pop(0)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "run", run)
    status, printed = run_command(["demo", again, "--iters", "9"])
    assert (status, left) == (statuses[-1], [])
    assert [name for name, _ in started] == ["train", "test", "predict"][: len(statuses)]
    assert started[0][1] == [demo.RECIPE, "--work-dir", FOLDER, "--iters", "9", again]
    assert all(words[0] == FOLDER for _, words in started[1:])
    assert ("box AP 0.31" in printed) == (f"{FOLDER}/pictures\n" in printed) == (status == 0)


@pytest.mark.long
def test_the_demo_on_few_images(tmp_path, monkeypatch):
    draw = shapes.draw_dataset
    few = {"num_train": 4, "num_val": 11, "image_size": (64, 64)}
    monkeypatch.setattr(shapes, "draw_dataset", lambda root, **_: draw(root, **few))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # which the demo sets
    small = ["demo", "--iters", "2", "--device", "cpu"]
    status, printed = run_command(small)
    assert status == 0, printed
    assert {path.name for path in Path(FOLDER, "pictures").glob("*.jpg")} == {"000010.jpg", "000011.jpg"}
    status, printed = run_command(small)
    assert (status, "--resume" in printed, "--overwrite" in printed) == (2, True, True)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--cfg-options data_root=elsewhere", "--cfg-options"),
        ("--resume --overwrite", "--overwrite"),
        ("--iters 0", "--iters"),
        ("--device tpu", "--device"),
    ],
)
def test_options_that_the_demo_cannot_follow_are_refused_before_it_trains(words, named, monkeypatch):
    monkeypatch.setattr(demo, "run", None)
    status, printed = run_command(["demo", *words.split()])
    assert (status, named in printed.splitlines()[-1]) == (2, True), printed


def test_a_bar_on_a_terminal(monkeypatch, capsys):
    """In place of the lines of a training; those before and after it are printed."""
    logger = MMLogger("demo", log_level="INFO")
    runner, hook = SimpleNamespace(logger=logger, max_iters=3, iter=1), ProgressHook()
    for shown in (False, True):
        monkeypatch.setattr(sys.stdout, "isatty", lambda shown=shown: shown, raising=False)
        hook.before_train(runner)
        for _ in range(2):
            logger.info("a line of the training")
            hook.after_train_iter(runner, 0)
        hook.after_train(runner)
        logger.info("a line after it")
        printed = capsys.readouterr().out
        assert ("2/2" in printed, "of the training" in printed, "after it" in printed) == (shown, not shown, True)
