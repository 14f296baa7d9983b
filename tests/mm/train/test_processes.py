"""Signals of several kinds, in one process, without a training."""

import os
import signal
import threading

import pytest

pytest.importorskip("mmengine")
from vitdense.mm.train.processes import STOPS, StopSignal, handling_stops, stop_at_once


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


def test_other_threads_leave_signals_alone():
    done = []

    def work():
        with handling_stops(stop_at_once):
            done.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [before]
