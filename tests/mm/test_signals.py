"""How processes start and how they are stopped: environment variables and signals, without a training."""

import multiprocessing
import os
import signal
import threading
import time

import pytest
import torch

pytest.importorskip("mmengine")
from vitdense.mm.errors import ConfigError
from vitdense.mm.processes import LAUNCHERS, STOPS, StopSignal, find_launcher, handling_stops, stop_at_once


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
def started(monkeypatch):
    """Sets what a launcher tells process 1 of 2."""

    def start(name):
        rank, size, *others = LAUNCHERS[name].numbers
        values = {rank: "1", size: "2", **dict.fromkeys(others, "0"), **dict.fromkeys(LAUNCHERS[name].texts, "host")}
        for variable, value in values.items():
            monkeypatch.setenv(variable, value)
        return values

    for launcher in LAUNCHERS.values():
        for variable in (*launcher.numbers, *launcher.texts):
            monkeypatch.delenv(variable, raising=False)
    return start


@pytest.mark.parametrize("launcher", ["pytorch", "mpi"])
def test_more_processes_than_gpus_are_refused(started, monkeypatch, launcher):
    local = next(variable for variable in started(launcher) if variable.endswith("LOCAL_RANK"))
    monkeypatch.setenv(local, "1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert find_launcher(launcher) == launcher
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match=rf"{local}: got 1, expected less than the 1 GPUs"):
        find_launcher(launcher)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_launchers_that_did_not_start_this_process_name_the_variable(started, monkeypatch, launcher):
    variables = started(launcher)
    assert find_launcher(launcher) == launcher
    for variable in variables:
        with monkeypatch.context() as patch:
            patch.delenv(variable)
            with pytest.raises(ConfigError, match=rf"{variable} is not set"):
                find_launcher(launcher)
    rank, *_ = LAUNCHERS[launcher].numbers
    monkeypatch.setenv(rank, "abc")
    with pytest.raises(ConfigError, match=f"{rank}: got 'abc'"):
        find_launcher(launcher)


def test_torchrun_is_understood(started, monkeypatch):
    assert find_launcher("none") == "none"
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert find_launcher("none") == "none"
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="RANK, LOCAL_RANK, MASTER_PORT, MASTER_ADDR is not set"):
        find_launcher("none")
    started("pytorch")
    assert find_launcher("none") == "pytorch"
