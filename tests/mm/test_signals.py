"""How processes start and how they are stopped: environment variables and signals, without a training."""

import multiprocessing
import os
import signal
import threading
import time

import pytest
import torch

from vitdense.mm import processes
from vitdense.mm.errors import ConfigError
from vitdense.mm.processes import OF_TORCHRUN, STOPS, StopSignal, connect, find_launcher, handling_stops, stop_at_once


@pytest.mark.parametrize("number", STOPS)
def test_every_signal_of_a_scheduler_or_a_terminal_stops(number, monkeypatch):
    before = signal.getsignal(number)
    signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(StopSignal) as stop, handling_stops(stop_at_once):
            os.kill(os.getpid(), number)
        assert stop.value.signum == number
        assert signal.Signals(number).name in str(stop.value)
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_what_nohup_switched_off_stays_off():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with handling_stops(stop_at_once):
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_forked_child_ends_by_its_own_signals():
    """Forked children, such as a pool's workers, end by SIGTERM; the handler is for one process."""
    fork = multiprocessing.get_context("fork")
    runs = fork.Event()

    def wait():
        runs.set()
        time.sleep(60)

    with handling_stops(stop_at_once):
        child = fork.Process(target=wait)
        child.start()
        runs.wait()
        child.terminate()
        child.join()
    assert child.exitcode == -signal.SIGTERM


def test_other_threads_do_not_handle_signals():
    done = []

    def work():
        with handling_stops(stop_at_once):
            done.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [before]


@pytest.fixture
def _started(monkeypatch):
    for variable in OF_TORCHRUN:
        monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("WORLD_SIZE", "2")


@pytest.mark.usefixtures("_started")
def test_more_processes_than_gpus_are_refused(monkeypatch):
    for gpus in (0, 2):  # without GPUs the processes are on CPUs
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        assert find_launcher("pytorch") == "pytorch"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match="LOCAL_RANK: got 1, expected less than the 1 GPUs"):
        find_launcher("pytorch")


@pytest.mark.usefixtures("_started")
def test_torchrun_is_understood_and_its_missing_variables_are_named(monkeypatch):
    assert find_launcher("none") == find_launcher("pytorch") == "pytorch"
    for variable in OF_TORCHRUN:
        with monkeypatch.context() as patch:
            patch.delenv(variable)
            with pytest.raises(ConfigError, match=rf"{variable} is not set"):
                find_launcher("pytorch")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert find_launcher("none") == "none"
    monkeypatch.delenv("WORLD_SIZE")
    assert find_launcher("none") == "none"


def test_variables_of_other_launchers_are_named(monkeypatch):
    monkeypatch.setattr(processes, "get_device", lambda: "cuda")
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    with pytest.raises(ConfigError, match=r"--launcher slurm.*SLURM_PROCID"):
        connect("slurm", {})
