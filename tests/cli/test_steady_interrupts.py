"""One Ctrl-C is one interrupt, however many signals it comes as."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from stoker.cli import interrupts
from stoker.cli.interrupts import steady_interrupts


def strike() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_signals_that_come_together_interrupt_once() -> None:
    with steady_interrupts():
        with pytest.raises(KeyboardInterrupt):
            strike()
        strike()
        strike()  # what is told meanwhile is told to its end
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_another_one_later_interrupts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "SAME_SECONDS", 0.0)
    with steady_interrupts():
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                strike()


def test_whoever_handles_interrupts_goes_on_doing_so() -> None:
    struck = []
    before = signal.signal(signal.SIGINT, lambda *_: struck.append(1))
    try:
        with steady_interrupts():
            strike()
            strike()
    finally:
        signal.signal(signal.SIGINT, before)
    assert struck == [1, 1]


def test_other_threads_may_not_and_do_not() -> None:
    done = []

    def run() -> None:
        with steady_interrupts():
            done.append(1)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert done == [1]
