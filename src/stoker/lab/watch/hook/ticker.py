"""A thread that does something every so often, and is out of the way whenever the process is forked.

A process that has threads is forked with them in the middle of something; Python warns of that, and the user's
training would get the warning because of us.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from weakref import WeakSet

from stoker.foundation.machine import Clock
from stoker.lab.watch.hook.alarm import Alarm, Rest


class Ticker:
    """Calls `do` every `every_seconds`, with what it was to wake up for that."""

    def __init__(self, name: str, every_seconds: Callable[[], float], do: Callable[[Rest], None]) -> None:
        self._name, self._every_seconds, self._do = name, every_seconds, do
        self._thread: threading.Thread | None = None
        self._alarm: Alarm | None = None
        self._lock = threading.RLock()  # what is collected meanwhile may come here again
        self._process = os.getpid()
        _all.add(self)

    @property
    def is_running(self) -> bool:
        """Whether there is a thread."""
        return self._thread is not None

    def start(self) -> None:
        """Begin, unless it does already. Any thread may ask for it."""
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._alarm = Alarm()
                    thread = threading.Thread(target=self._run, args=(self._alarm,), name=self._name, daemon=True)
                    thread.start()
                    self._thread = thread

    def stop(self, *, waits: bool = True) -> None:
        """End the thread; with `waits`, before control returns."""
        with self._lock:
            thread, self._thread = self._thread, None
            if self._alarm is not None:
                self._alarm.end()
        if thread is not None and waits and thread is not threading.current_thread():
            thread.join()

    def _run(self, alarm: Alarm) -> None:
        clock = Clock()
        try:
            while (rest := alarm.rest(self._every_seconds(), clock)) is not None:
                self._do(rest)
        finally:
            clock.close()
            alarm.close()


_all: WeakSet[Ticker] = WeakSet()
_paused: list[Ticker] = []


def _before_fork() -> None:
    _paused[:] = [ticker for ticker in list(_all) if ticker.is_running]
    for ticker in _paused:
        ticker.stop()


def _after_in_parent() -> None:
    while _paused:
        _paused.pop().start()


def _after_in_child() -> None:
    _paused.clear()
    _all.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
