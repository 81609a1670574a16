"""A thread that does something every so often, and stands aside whenever the process forks.

A process with threads is forked while they are in the middle of something; Python warns about that, and the user's
training would get the warning because of the doctor.

Each time the thread wakes up, it knows whether the GIL was held, and how long it waited for it. A thread that wakes up
and finds the GIL free continues; one that finds it held blocks once more. The kernel counts how often a thread blocks,
so the answer does not depend on how fast or how busy the machine is. A kernel timer counts how often it has expired by
the moment at which the thread has a core again, before it asks for the GIL. Time beyond that is the wait for the GIL.
Without such a timer, a thread that is late was either woken late or waited for the GIL, and short waits cannot be
distinguished.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple
from weakref import WeakSet

from stoker.foundation.machine import Clock

TICK_SECONDS = 2e-5
"""Resolution of the timer."""

HELD_SECONDS_UNTIMED = 4e-4
"""A wait for the GIL, where it is unknown when the thread was woken: that takes a tenth of a millisecond or two."""

_CLOEXEC, _MONOTONIC, _ABSOLUTE = os.O_CLOEXEC, time.CLOCK_MONOTONIC, 1


class Wakeup(NamedTuple):
    """How a thread came to run again after sleeping."""

    gil_wait_seconds: float
    """How long it waited for the GIL."""
    is_gil_held: bool
    """Whether another thread held the GIL."""


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))

    @classmethod
    def of(cls, seconds: float) -> _TimeSpec:
        return cls(*divmod(max(1, round(seconds * 1e9)), 1_000_000_000))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class WakeupTimer:
    """Lets one thread sleep, until another thread ends that for good."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._lock = threading.RLock()  # reentrant: garbage collected meanwhile may call `end`
        self._timer = -1
        with suppress(OSError, AttributeError):  # another system, or one that does not allow it
            self._libc = ctypes.PyDLL(None)  # keeps the GIL: setting the timer must not wait for it
            self._timer = self._libc.timerfd_create(_MONOTONIC, _CLOEXEC)

    def sleep(self, seconds: float, clock: Clock) -> Wakeup | None:
        """Sleep in the thread that `clock` belongs to; return None if it is over."""
        if self._timer < 0:
            began, delay_began = time.monotonic(), clock.times()[1]
            self._over.wait(seconds)
            # being woken includes getting a core
            waited = time.monotonic() - began - seconds - (clock.times()[1] - delay_began)
            return None if self._over.is_set() else Wakeup(waited, waited > HELD_SECONDS_UNTIMED)
        with self._lock:  # or it could be set again just after it was ended
            due = time.monotonic() + seconds
            if not self._over.is_set():
                self._set(due, _ABSOLUTE)
        num_blocked = _num_blocked()
        (count,) = struct.unpack("Q", os.read(self._timer, 8))
        waited = time.monotonic() - due - (count - 1) * TICK_SECONDS
        num_blocked = _num_blocked() - num_blocked - 1  # not counting the sleep itself
        return None if self._over.is_set() else Wakeup(waited, num_blocked > 0)

    def end(self) -> None:
        """Wake the thread up, now or when it next sleeps."""
        self._over.set()
        with self._lock:
            if self._timer >= 0:
                self._set(0.0)

    def close(self) -> None:
        """Release the timer; called at its end by the thread that slept."""
        with self._lock:
            timer, self._timer = self._timer, -1
        if timer >= 0:
            os.close(timer)

    def _set(self, seconds: float, flags: int = 0) -> None:
        spec = _TimerSpec(_TimeSpec.of(TICK_SECONDS), _TimeSpec.of(seconds))
        self._libc.timerfd_settime(self._timer, flags, ctypes.byref(spec), None)


def _num_blocked() -> int:
    """Return how often this thread has blocked so far."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


class PeriodicThread:
    """Calls `do` every `every_seconds`, with how the thread woke up."""

    def __init__(self, name: str, every_seconds: Callable[[], float], do: Callable[[Wakeup], None]) -> None:
        self._name, self._every_seconds, self._do = name, every_seconds, do
        self._thread: threading.Thread | None = None
        self._timer: WakeupTimer | None = None
        self._lock = threading.RLock()  # reentrant: garbage collected meanwhile may call `stop`
        _all.add(self)

    @property
    def is_running(self) -> bool:
        """Whether there is a thread."""
        return self._thread is not None

    def start(self) -> None:
        """Start the thread, unless it runs already. Any thread may call this."""
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._timer = WakeupTimer()
                    thread = threading.Thread(target=self._run, args=(self._timer,), name=self._name, daemon=True)
                    thread.start()
                    self._thread = thread

    def stop(self, *, waits: bool = True) -> None:
        """End the thread; with `waits`, before control returns."""
        with self._lock:
            thread, self._thread = self._thread, None
            if self._timer is not None:
                self._timer.end()
        if thread is not None and waits and thread is not threading.current_thread():
            thread.join()

    def _run(self, timer: WakeupTimer) -> None:
        clock = Clock()
        try:
            while (wakeup := timer.sleep(self._every_seconds(), clock)) is not None:
                self._do(wakeup)
        finally:
            clock.close()
            timer.close()


_all: WeakSet[PeriodicThread] = WeakSet()
_paused: list[PeriodicThread] = []


def _before_fork() -> None:
    _paused[:] = [thread for thread in list(_all) if thread.is_running]
    for thread in _paused:
        thread.stop()


def _after_in_parent() -> None:
    while _paused:
        _paused.pop().start()


def _after_in_child() -> None:
    _paused.clear()
    _all.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
