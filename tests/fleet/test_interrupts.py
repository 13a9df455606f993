"""Signals in the main thread: left at once, or noted and left after the work."""

import os
import signal
import threading

import pytest

from loadcell.fleet.interrupts import Flag, deferring, leaving


def strike(number: int) -> None:
    os.kill(os.getpid(), number)


def test_leaving() -> None:
    with pytest.raises(KeyboardInterrupt), leaving():
        strike(signal.SIGINT)
    with pytest.raises(SystemExit) as left, leaving():
        strike(signal.SIGTERM)
    assert left.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_deferring_ends_the_block_and_then_leaves() -> None:
    first, further, seen = Flag(), Flag(), []

    def work() -> None:
        with leaving(), deferring(first.set, further.set):
            for number in (signal.SIGTERM, signal.SIGINT):
                strike(number)
                seen.append((first.is_set(), further.is_set()))

    with pytest.raises(SystemExit) as left:
        work()
    assert left.value.code == 143
    assert seen == [(True, False), (True, True)]


def test_without_a_signal_nothing_is_raised_and_an_error_is_its_own() -> None:
    with deferring(Flag().set, Flag().set):
        pass
    with pytest.raises(ZeroDivisionError), deferring(Flag().set, Flag().set):
        raise ZeroDivisionError


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with leaving():
            strike(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_another_thread_gets_none() -> None:
    ended = []

    def run() -> None:
        with leaving(), deferring(Flag().set, Flag().set):
            ended.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert ended


def test_a_flag_is_raised_from_above() -> None:
    above = Flag()
    below = Flag(above)
    assert not below.is_set()
    above.set()
    assert below.is_set()
