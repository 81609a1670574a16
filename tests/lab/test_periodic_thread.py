"""Sleeping, and telling afterwards whether the interpreter's lock was held."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Callable

import pytest

from stoker.foundation.machine import Clock
from stoker.lab.watch.hook.periodic_thread import Wakeup, WakeupTimer

pytestmark = pytest.mark.timed


def wakeups(work: Callable[[], object], *, num: int = 40, seconds: float = 0.01) -> list[Wakeup]:
    """Return what a thread is told that sleeps while this one works."""
    found: list[Wakeup] = []
    timer, chance = WakeupTimer(), random.Random(1).uniform  # not in step with the work

    def sleep() -> None:
        clock = Clock()
        while len(found) < num and (wakeup := timer.sleep(seconds * chance(0.5, 1.5), clock)) is not None:
            found.append(wakeup)
        clock.close()
        timer.close()

    thread = threading.Thread(target=sleep)
    thread.start()
    over = time.monotonic() + 8  # whoever lets go of the lock for a moment only may keep the sleeper out for a second
    while thread.is_alive() and time.monotonic() < over:
        work()
    timer.end()
    thread.join()
    return found


def held_share(work: Callable[[], object]) -> float:
    found = wakeups(work)
    assert len(found) >= 3
    return sum(wakeup.is_gil_held for wakeup in found) / len(found)


def python() -> int:
    return sum(number * number for number in range(20_000))


def python_in_pieces() -> None:
    """Lets go of the lock every half a millisecond, as whoever calls a small function of torch's in between does."""
    over = time.perf_counter() + 5e-4
    while time.perf_counter() < over:
        pass
    hashlib.sha256(bytes(4096)).digest()


def native() -> None:
    hashlib.sha256(bytes(1 << 20)).digest()


def test_work_in_python_holds_the_lock_also_if_it_lets_go_now_and_then() -> None:
    assert held_share(python) > 0.7
    assert held_share(python_in_pieces) > 0.7


def test_native_work_and_sleep_do_not() -> None:
    assert min(held_share(native) for _ in range(3)) < 0.3
    assert min(held_share(lambda: time.sleep(0.001)) for _ in range(3)) < 0.3


def test_a_thread_is_woken_at_once_when_it_is_over() -> None:
    timer, found = WakeupTimer(), []

    def sleep() -> None:
        clock = Clock()
        found.append(timer.sleep(3600.0, clock))
        found.append(timer.sleep(3600.0, clock))  # and does not sleep any more
        clock.close()
        timer.close()

    thread = threading.Thread(target=sleep)
    thread.start()
    timer.end()
    thread.join(30)
    assert not thread.is_alive()
    assert found == [None, None]
    timer.end()  # nobody is there, which does no harm


def test_without_a_timer_of_the_kernels_it_sleeps_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    class Without:
        @staticmethod
        def timerfd_create(*_: int) -> int:
            return -1

    monkeypatch.setattr("stoker.lab.watch.hook.periodic_thread.ctypes.PyDLL", lambda _: Without())
    found = wakeups(lambda: time.sleep(0.001), num=3)
    assert len(found) == 3
    test_a_thread_is_woken_at_once_when_it_is_over()
