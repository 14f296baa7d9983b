"""Several processes: the tools as torchrun starts them, on CPUs."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from commands import run_command, succeed
from conftest import REPO, made_once, run_ranks
from test_tools import environment, printed_by, shrunk, tool

from vitdense.mm.checkpoints import read_checkpoint

pytestmark = [pytest.mark.long, pytest.mark.commands]


def torchrun(name, *args):
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return printed_by(*launch, f"tools/{name}.py", *args)


def _command(rank, folder, port, words):
    """What one of two processes does that torchrun would start."""
    variables = {"WORLD_SIZE": 2, "RANK": rank, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in variables.items()})
    torch.set_num_threads(1)
    status, printed = run_command(words[rank])
    Path(folder, f"{rank}.txt").write_text(f"{status}\n{printed}")
    os._exit(0)  # destroying the group can wait for ever on the CPU


def commands_in_two(folder, port, *words):
    """Status and output of a command, in both processes, which have the packages already; or of one for each."""
    words = [[str(word) for word in each] for each in (words * 2)[:2]]
    run_ranks(_command, str(folder), port, words)
    found = [Path(folder, f"{rank}.txt").read_text().partition("\n") for rank in (0, 1)]
    return [(int(status), printed) for status, _, printed in found]


def train_in_two(folder):
    """A small segmentor, with an average of its weights. torchrun is understood without --launcher."""
    hooks = "default_hooks.update(ema=dict(type='EMAHook'), curves=None)\n"
    (folder / "small.py").write_text(shrunk("upernet_swin_nano_shapes", folder) + hooks)
    printed = torchrun("train", folder / "small.py", "--work-dir", folder / "two")
    assert ("SyncBN needs GPUs" in printed) == (not torch.cuda.is_available())
    assert len(re.findall(r"Iter\(train\) \[6/6\]", printed)) == 1  # one training, not two


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return made_once(tmp_path_factory, "processes", train_in_two) / "two"


@pytest.fixture(scope="module")
def config(trained):
    return trained.parent / "small.py"


def test_two_processes_evaluate_as_one(config, trained, tmp_path):
    words = ["test", trained, "--cfg-options", "test_dataloader.dataset.indices=3"]  # one has an image twice
    done = commands_in_two(tmp_path, 29541, [*words, "--launcher", "pytorch", "--out", tmp_path / "two.json"])
    assert [status for status, _ in done] == [0, 0], done
    succeed([*words, "--out", tmp_path / "one.json"])
    scores = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("one", "two")]
    assert scores[0] == scores[1]
    assert not (REPO / ".dist_test").exists()


def same(got, want):
    assert set(got) == set(want)
    for kind in ("state_dict", "ema_state_dict"):
        assert all(torch.equal(x, got[kind][key]) for key, x in want[kind].items())
    for i, state in want["optimizer"]["state"].items():
        assert all(torch.equal(x, got["optimizer"]["state"][i][name]) for name, x in state.items())


def test_two_processes_share_images_out(config, trained, tmp_path):
    images = sorted((config.parent / "shapes/val").glob("*.jpg"))
    assert len(images) == 4
    done = commands_in_two(tmp_path, 29543, ["predict", trained, *images, "--out-dir", tmp_path])
    assert [status for status, _ in done] == [0, 0], done
    assert sorted(path.stem for path in (tmp_path / "labels").iterdir()) == [image.stem for image in images]


def test_processes_with_other_checkpoints_do_not_start(config, trained, tmp_path):
    """As on machines without a shared disk: one has a checkpoint, the other none."""
    (tmp_path / "other").mkdir()
    words = [["train", config, "--work-dir", folder, "--resume"] for folder in (trained, tmp_path / "other")]
    for rank, (status, printed) in enumerate(commands_in_two(tmp_path, 29517, *words)):
        assert status == 2, printed
        last = printed.strip().splitlines()[-1]
        assert f"do not agree on the checkpoint, so this one, {rank}, stops" in last
        assert "process 0: iter_6.pth (SHA-256" in last
        assert "process 1: none" in last
    assert not list((tmp_path / "other").glob("*.pth"))


def start_node(config, work_dir, port, *options, nodes="2", is_host="", restarts="0"):
    """One of several nodes on this machine: torchrun with one process."""
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-id", "nodes", "--rdzv-endpoint", f"localhost:{port}"]
    rendezvous += ["--rdzv-conf", f"is_host={is_host},last_call_timeout=3"] if is_host else []
    launch = ["--nnodes", nodes, "--nproc-per-node", "1", "--max-restarts", restarts, *rendezvous]
    saves = ["--resume", "--cfg-options", "default_hooks.checkpoint.interval=5"]
    training = ["tools/train.py", config, "--work-dir", work_dir, *options, *saves]
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *launch, *training],
        cwd=REPO,
        env={**environment(), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1" if is_host else "0"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def kill(node):
    """A node with its process, which would live on."""
    started = psutil.Process(node.pid).children(recursive=True)
    for process in (node, *started):
        process.kill()


def wait_for(node, happened):
    while not happened():
        assert node.poll() is None, "it ended before"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_node_costs_the_steps_since_the_last_checkpoint(config, tmp_path, killed):
    """Its process ends with it, so that the folder is free; both nodes are started again with the same command."""
    for name, port in (("whole", 29531), ("killed", 29533)):
        work_dir = tmp_path / name
        nodes = [start_node(config, work_dir, port + killed, "--iters", "30") for _ in range(2)]
        if name == "killed":
            wait_for(nodes[0], (work_dir / "iter_10.pth").exists)
            kill(nodes[killed])
            assert [node.wait(timeout=120) != 0 for node in nodes] == [True, True]
            assert not (work_dir / "iter_30.pth").exists()
            nodes = [start_node(config, work_dir, port + 10 + killed, "--iters", "30") for _ in range(2)]
        assert [node.wait(timeout=300) for node in nodes] == [0, 0]
    want, got = (read_checkpoint(str(tmp_path / name / "iter_30.pth"))["state_dict"] for name in ("whole", "killed"))
    assert all(torch.equal(x, got[key]) for key, x in want.items())


@pytest.mark.slow
def test_nodes_that_come_and_go_make_the_steps_of_one_process(tmp_path):
    """Three, two when one is killed, and three again: torchrun restarts them, each time with other shares of a step.

    Without momentum, which enlarges rounding. Batch norms would have statistics of a process.
    """
    fixed = "model.update(backbone=dict(drop_path_rate=0.0), neck=dict(norm_cfg=None))\n"
    fixed += "optim_wrapper = dict(optimizer=dict(_delete_=True, type='SGD', lr=0.001, weight_decay=0.05))\n"
    (tmp_path / "small.py").write_text(shrunk("atss_swin_nano_shapes", tmp_path) + fixed)
    options = ["--iters", "40", "--total-batch-size", "6"]

    def start(is_host):
        how = {"nodes": "1:3", "is_host": is_host, "restarts": "9"}
        return start_node(tmp_path / "small.py", tmp_path / "many", 29551, *options, **how)

    nodes = [start("true"), start("false"), start("false")]
    wait_for(nodes[0], (tmp_path / "many/iter_10.pth").exists)
    kill(nodes[2])
    wait_for(nodes[0], lambda: len([*tmp_path.glob("many/*/*.log")]) == 2)
    nodes[2] = start("false")
    assert [node.wait(timeout=400) for node in nodes] == [0, 0, 0]
    logs = [path.read_text() for path in sorted(tmp_path.glob("many/*/*.log"))]
    assert [re.search(r"GPU number: (\d)", log)[1] for log in logs] == ["3", "2", "3"]
    assert "resumed epoch: 0, iter: 10\n" in logs[1]

    tool("train", tmp_path / "small.py", "--work-dir", tmp_path / "one", *options)
    one, many = (read_checkpoint(str(tmp_path / name / "iter_40.pth"))["message_hub"] for name in ("one", "many"))
    got, want = (hub["log_scalars"]["train/loss"].data[0] for hub in (many, one))
    assert got == pytest.approx(want, rel=1e-5)
