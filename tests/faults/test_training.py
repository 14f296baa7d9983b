"""Faults from outside a training: one line, a complete last checkpoint, no process left behind."""

import shutil
import signal
import time

import psutil
import pytest
from commands import start_tool
from conftest import REPO
from test_tools import OF_SEGMENTORS, SHRINK

from vitdense.mm.checkpoints import read_checkpoint

pytestmark = pytest.mark.slow
CONFIG = (
    SHRINK
    + OF_SEGMENTORS
    + """
train_cfg = dict(max_iters=10000, val_interval=10000)
param_scheduler = []
default_hooks = dict(checkpoint=dict(interval=5, save_best=None, max_keep_ckpts=2), logger=dict(interval=1))
"""
)


@pytest.fixture
def start(tmp_path):
    started = []

    def run(workers=2, work=tmp_path / "work", saves=True):
        config = tmp_path / "tiny.py"
        base = str(REPO / "configs/demo/upernet_swin_nano_shapes.py")
        config.write_text(CONFIG.format(base=base, root=f"{tmp_path}/shapes/", best=None))
        settings = {"num_workers": workers, "persistent_workers": workers > 0}
        splits = ("train", "val", "test")
        options = [f"{split}_dataloader.{key}={value}" for split in splits for key, value in settings.items()]
        process = start_tool("train", config, "--work-dir", work, "--cfg-options", *options)
        started.append(process)
        while saves and not (work / "last_checkpoint").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        return process

    yield run
    for process in started:
        process.kill()


def end(process, work):
    children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    _, text = process.communicate(timeout=120)
    assert "Traceback" not in text, text
    _, alive = psutil.wait_procs(children, timeout=1)
    assert [child for child in alive if child.status() != psutil.STATUS_ZOMBIE] == []
    for path in work.glob("iter_*.pth"):
        assert path.name == f"iter_{read_checkpoint(str(path))['meta']['iter']}.pth"
    assert not list(work.glob(".*.pth"))
    return process.returncode, text.strip().splitlines()[-1].strip("\0")


@pytest.mark.parametrize("workers", [0, 2])
def test_ctrl_c(start, tmp_path, workers):
    process = start(workers)
    process.send_signal(signal.SIGINT)
    status, line = end(process, tmp_path / "work")
    assert status == 130
    last = (tmp_path / "work/last_checkpoint").read_text()
    assert last.removesuffix(".pth").removeprefix("iter_") in line
    assert f"--resume goes on from {last}" in line


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_data_worker_ends(start, tmp_path, number):
    process = start()
    psutil.Process(process.pid).children()[0].send_signal(number)
    status, line = end(process, tmp_path / "work")
    assert status == 2
    assert line.startswith("error: ")
    assert "worker" in line


@pytest.mark.parametrize("fault", ["deleted", "cut", "no folder"])
@pytest.mark.parametrize("what", ["train", "semantic/train"])
def test_files_of_the_data_set_are(start, tmp_path, what, fault):
    process, folder = start(workers=0), tmp_path / "shapes" / what
    if fault == "no folder":
        shutil.rmtree(folder)
    else:
        for path in folder.iterdir():
            if fault == "cut":
                path.write_bytes(path.read_bytes()[:60])
            else:
                path.unlink()
    status, line = end(process, tmp_path / "work")
    assert status == 2
    assert line.startswith("error: ")
    assert what in line
    assert "--resume" in line


def test_the_work_folder_is_deleted(start, tmp_path):
    process = start(workers=0)
    shutil.rmtree(tmp_path / "work")
    status, line = end(process, tmp_path / "work")
    assert status == 2
    assert line.startswith("error: ")


@pytest.mark.parametrize("work", ["/proc/x", "file"])
def test_a_work_folder_that_cannot_be_made(start, tmp_path, work):
    (tmp_path / "file").touch()
    process = start(work=tmp_path / work, saves=False)
    status, line = end(process, tmp_path)
    assert status == 2
    assert line.startswith("error: ")
    assert work in line
