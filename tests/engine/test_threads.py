"""The threads engine: samples spread over threads, order kept, bounded, and a clean end in every case."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.engine.threads import Threads
from stoker.errors import ForeignProcess, WorkerStuck


def num_threads() -> int:
    return sum(thread.name.startswith("stoker-") for thread in threading.enumerate())


class Job:
    """A task that notes who did what."""

    def __init__(self, number: int, size: int, log: list[Any] | None = None, fails: Any = None) -> None:
        self.number, self.size, self.fails = number, size, fails
        self.log = log if log is not None else []
        self.done = [0] * size

    def do(self, start: int, stop: int) -> None:
        if self.fails == "do":
            raise ValueError(f"task {self.number}")
        for index in range(start, stop):
            self.done[index] += 1
        self.log.append((self.number, start, stop, threading.current_thread().name))

    def finish(self) -> tuple[int, int]:
        if self.fails == "finish":
            raise ValueError(f"task {self.number}")
        assert self.done == [1] * self.size, "every unit is done once"
        return self.number, self.size


@given(
    sizes=st.lists(st.integers(0, 40), max_size=12),
    threads=st.integers(1, 6),
    depth=st.integers(1, 5),
    draws=st.booleans(),
)
@settings(max_examples=60)
def test_every_unit_is_done_once_and_results_come_in_order(
    sizes: list[int], threads: int, depth: int, draws: bool
) -> None:
    engine = Threads((Job(i, size) for i, size in enumerate(sizes)), num_threads=threads, depth=depth, draws=draws)
    results = []
    while (result := next(iter_of(engine), None)) is not None:
        results.append(result)
    assert results == list(enumerate(sizes))
    assert num_threads() == 0


def iter_of(engine: Threads[Any]) -> Iterator[Any]:
    class Once:
        def __iter__(self) -> Iterator[Any]:
            return self

        def __next__(self) -> Any:
            return next(engine)

    return Once()


def test_one_batch_is_spread_over_all_threads() -> None:
    """All three threads must be inside the first task at once, or the barrier breaks."""
    barrier = threading.Barrier(3, timeout=20)

    class Meeting(Job):
        def do(self, start: int, stop: int) -> None:
            if self.number == 0 and start < 3:
                barrier.wait()
            super().do(start, stop)

    engine = Threads(iter([Meeting(0, 3), Meeting(1, 3)]), num_threads=3, depth=2)
    assert next(engine) == (0, 3)
    engine.close()


def test_tasks_are_drawn_by_the_caller_unless_drawing_is_the_work() -> None:
    drawers: list[str] = []

    def tasks() -> Iterator[Job]:
        for number in range(6):
            drawers.append(threading.current_thread().name)
            yield Job(number, 2)

    here = threading.current_thread().name
    for draws in (False, True):
        drawers.clear()
        engine = Threads(tasks(), num_threads=2, depth=3, draws=draws)
        assert [next(engine) for _ in range(6)] == [(number, 2) for number in range(6)]
        assert (set(drawers) == {here}) != draws
        engine.close()


def test_a_second_interrupt_while_ending_does_not_leave_an_engine_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Threads((Job(i, 3) for i in range(20)), num_threads=2, depth=2)
    assert next(engine) == (0, 3)
    with monkeypatch.context() as patch:

        def interrupted(self: threading.Thread, timeout: float | None = None) -> None:
            raise KeyboardInterrupt

        patch.setattr(threading.Thread, "join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.close()
    assert [next(engine)[0] for _ in range(5)] == [1, 2, 3, 4, 5]
    engine.close()


def test_no_more_than_depth_are_begun_ahead() -> None:
    begun: list[int] = []
    may_go_on = threading.Semaphore(0)

    def tasks() -> Iterator[Job]:
        for number in range(100):
            begun.append(number)
            may_go_on.release()
            yield Job(number, 2)

    engine = Threads(tasks(), num_threads=2, depth=3)
    assert next(engine) == (0, 2)
    for _ in range(4):  # the one taken and three ahead
        assert may_go_on.acquire(timeout=10)
    assert not may_go_on.acquire(timeout=0.2)
    assert begun == [0, 1, 2, 3]
    engine.close()
    assert num_threads() == 0


@pytest.mark.parametrize("fails", ["do", "finish"])
def test_an_error_comes_in_its_turn_ends_the_threads_and_the_next_call_goes_on(fails: str) -> None:
    jobs = [Job(i, 4, fails=fails if i == 2 else None) for i in range(5)]
    engine = Threads(iter(jobs), num_threads=2, depth=4)
    assert [next(engine), next(engine)] == [(0, 4), (1, 4)]
    with pytest.raises(ValueError, match="task 2"):
        next(engine)
    assert num_threads() == 0
    assert [next(engine), next(engine)] == [(3, 4), (4, 4)]
    with pytest.raises(StopIteration):
        next(engine)
    assert num_threads() == 0


def test_an_error_in_the_source_comes_in_its_turn() -> None:
    def tasks() -> Iterator[Job]:
        yield Job(0, 3)
        raise OSError("no more")

    engine = Threads(tasks(), num_threads=2, depth=4)
    assert next(engine) == (0, 3)
    with pytest.raises(OSError, match="no more"):
        next(engine)
    assert num_threads() == 0


def test_dropping_the_engine_ends_its_threads() -> None:
    engine = Threads((Job(i, 3) for i in range(1000)), num_threads=3, depth=2)
    next(engine)
    assert num_threads() == 3
    del engine
    gc.collect()
    assert num_threads() == 0


def test_an_error_ahead_of_the_caller_does_not_keep_a_dropped_engine() -> None:
    def tasks() -> Iterator[Job]:
        for number in range(4):
            yield Job(number, 1)
        raise OSError("later")

    gc.disable()
    try:
        engine = Threads(tasks(), num_threads=2, depth=5)
        assert next(engine) == (0, 1)
        del engine
        assert num_threads() == 0
        engine = Threads(iter([Job(0, 1, fails="do"), Job(1, 1)]), num_threads=2, depth=2)
        with contextlib.suppress(ValueError):
            next(engine)
        next(engine)
        del engine
        assert num_threads() == 0  # at once, not at the next garbage collection
    finally:
        gc.enable()


def test_an_interrupt_while_drawing_ahead_loses_no_batch() -> None:
    def tasks() -> Iterator[Job]:
        for number in range(6):
            if number == 3 and not interrupted:
                interrupted.append(True)
            yield Job(number, 1)

    interrupted: list[bool] = []
    source = tasks()

    class Interrupting:
        def __iter__(self) -> Iterator[Job]:
            return self

        def __next__(self) -> Job:
            job = next(source)
            if job.number == 3 and len(interrupted) == 1:
                interrupted.append(True)
                raise KeyboardInterrupt
            return job

    engine = Threads(Interrupting(), num_threads=1, depth=2)
    seen = []
    while True:
        try:
            seen.append(next(engine)[0])
        except KeyboardInterrupt:
            continue
        except StopIteration:
            break
    assert seen == [0, 1, 2, 4, 5]  # the one that was being drawn is gone, none that was made


def test_a_hang_is_shown_with_the_stacks() -> None:
    free = threading.Event()

    class Hanging(Job):
        def do(self, start: int, stop: int) -> None:
            free.wait()
            super().do(start, stop)

    engine = Threads(iter([Hanging(0, 1)]), num_threads=1, depth=1, timeout=0.2)
    timer = threading.Timer(0.6, free.set)  # so that the end does not wait forever
    timer.start()
    with pytest.raises(WorkerStuck, match=r"no batch came within timeout=0.2 s") as caught:
        next(engine)
    assert "free.wait()" in str(caught.value)
    assert "thread stoker-0" in str(caught.value)
    timer.join()
    assert next(engine) == (0, 1)  # it was only slow
    engine.close()


def test_a_forked_child_is_told_that_its_threads_stayed_behind() -> None:
    engine = Threads((Job(i, 3) for i in range(100)), num_threads=2, depth=2)
    next(engine)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            next(engine)
        except ForeignProcess as error:
            os.write(writer, str(error).encode())
        finally:
            engine.close()  # nothing to wait for, and no lock to hang on
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        assert b"call iter(loader) in the process that uses it" in pipe.read()
    engine.close()


ENDLESS = """
import sys, time
import stoker
class Slow:
    def __len__(self): return 10**6
    def __getitem__(self, position):
        time.sleep(0.005)
        return position
iterator = iter(stoker.DataLoader(Slow(), batch_size=4, num_threads=3))
print(next(iterator).tolist(), flush=True)
"""


def test_an_iterator_alive_at_the_interpreters_exit_does_not_hang_it() -> None:
    done = subprocess.run([sys.executable, "-c", ENDLESS], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 1, 2, 3]\n", "")


def test_ctrl_c_ends_everything_at_once() -> None:
    code = ENDLESS + "\nprint('ready', flush=True)\nfor batch in iterator: pass\n"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "[0, 1, 2, 3]\n"
    assert process.stdout.readline() == "ready\n"
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - started < 10
    assert process.returncode != 0
    assert errors.strip().endswith("KeyboardInterrupt")


STUCK = """
import threading, time
import stoker
class Stuck:
    def __len__(self): return 10
    def __getitem__(self, position):
        if position == 4:
            threading.Event().wait()
        return position
iterator = iter(stoker.DataLoader(Stuck(), batch_size=4, num_threads=2))
print(next(iterator).tolist(), flush=True)
"""


@pytest.mark.slow
def test_a_read_that_hangs_forever_does_not_hang_the_exit() -> None:
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "[0, 1, 2, 3]\n")
