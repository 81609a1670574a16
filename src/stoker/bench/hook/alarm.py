"""Sleeping, and knowing afterwards how long the interpreter's lock was waited for.

A timer of the kernel's tells, at the moment at which a sleeping thread has a core again and before it asks for the
lock, how much too late that was: it counts how often it has expired. What comes on top is the wait for the lock.
Without such a timer, a thread that is late was either woken late or waited for the lock, and short waits cannot be told
apart.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
import time
from contextlib import suppress
from typing import NamedTuple

from stoker.foundation.machine import Clock

TICK_SECONDS = 2e-5
"""What the timer counts in."""

HELD_SECONDS = 1e-4
"""Whoever finds the lock free has it within some tens of microseconds."""

HELD_SECONDS_UNTIMED = 4e-4
"""Where it is not known when the thread was woken: a tenth of a millisecond or two for that."""

_CLOEXEC, _MONOTONIC = os.O_CLOEXEC, 1


class Rest(NamedTuple):
    """What came of sleeping."""

    lock_seconds: float
    """How long the interpreter's lock was waited for afterwards."""
    is_held: bool
    """Whether that was so long that somebody had it."""


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))

    @classmethod
    def of(cls, seconds: float) -> _TimeSpec:
        return cls(*divmod(max(1, round(seconds * 1e9)), 1_000_000_000))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class Alarm:
    """Lets one thread sleep, until another one ends that for good."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._lock = threading.RLock()  # what is collected meanwhile may come here again
        self._timer = -1
        with suppress(OSError, AttributeError):  # another system, or one that does not allow it
            self._libc = ctypes.CDLL(None)
            self._timer = self._libc.timerfd_create(_MONOTONIC, _CLOEXEC)

    def rest(self, seconds: float, clock: Clock) -> Rest | None:
        """Sleep for so long, in the thread whose clock it is; return None if it is over."""
        began, delay_began = time.perf_counter(), clock.times()[1]
        late = 0.0
        if self._timer < 0:
            self._over.wait(seconds)
        else:
            with self._lock:  # or it would be set again just after it was ended
                if not self._over.is_set():
                    self._set(seconds)
            (count,) = struct.unpack("Q", os.read(self._timer, 8))
            late = (count - 1) * TICK_SECONDS
        if self._over.is_set():
            return None
        waited = time.perf_counter() - began - seconds - late
        if self._timer >= 0:
            return Rest(waited, waited > HELD_SECONDS)
        waited -= clock.times()[1] - delay_began  # being woken includes getting a core
        return Rest(waited, waited > HELD_SECONDS_UNTIMED)

    def end(self) -> None:
        """Wake the thread up, now or when it next wants to sleep."""
        self._over.set()
        with self._lock:
            if self._timer >= 0:
                self._set(0.0)

    def close(self) -> None:
        """Let go of the timer; called by the thread that has slept, at its end."""
        with self._lock:
            timer, self._timer = self._timer, -1
        if timer >= 0:
            os.close(timer)

    def _set(self, seconds: float) -> None:
        spec = _TimerSpec(_TimeSpec.of(TICK_SECONDS), _TimeSpec.of(seconds))
        self._libc.timerfd_settime(self._timer, 0, ctypes.byref(spec), None)
