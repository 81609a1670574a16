"""Threads and workers that become more and fewer while they work."""

from __future__ import annotations

import gc
import logging
import multiprocessing.forkserver
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stoker
from stoker.engine.inline import Inline
from stoker.engine.processes import team as team_module
from stoker.engine.processes.team import Team
from stoker.engine.threads import Threads
from stoker.errors import OutOfDescriptors
from stoker.tuning.engine_switcher import EngineSegment, EngineSwitcher, Runner
from stoker.tuning.parallelism import Parallelism
from tests.faults.test_process_faults import begun, kill, workers
from tests.laws.test_auto_laws import auto, switcher_of
from tests.loader.datasets import KeyedOnly, Numbers, listed, plain


def until(is_so: Callable[[], bool], *, seconds: float = 20.0) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it has never come true"
        time.sleep(0.005)


# ---------------------------------------------------------------- threads


class Job:
    """A task whose units take a while."""

    def __init__(self, number: int, size: int = 6, seconds: float = 0.0) -> None:
        self.number, self.size, self._seconds = number, size, seconds
        self.done: list[int] = []

    def do(self, start: int, stop: int) -> None:
        if self._seconds:
            time.sleep(self._seconds)
        self.done += range(start, stop)

    def finish(self) -> tuple[int, int]:
        assert sorted(self.done) == list(range(self.size))
        return self.number, self.size


def num_threads() -> int:
    return sum(thread.name.startswith("stoker-") for thread in threading.enumerate())


@given(seed=st.integers(0, 1000), draws=st.booleans())
@settings(max_examples=20)
def test_threads_may_be_more_and_fewer_at_any_time(seed: int, draws: bool) -> None:
    chance = random.Random(seed)
    jobs = (Job(number, chance.randrange(8), 0.0002) for number in range(60))
    engine = Threads(jobs, num_threads=2, depth=2, draws=draws)
    for number in range(60):
        assert next(engine)[0] == number
        if chance.random() < 0.5:
            engine.resize(chance.randint(1, 6), chance.randint(1, 5))
    with pytest.raises(StopIteration):
        next(engine)
    assert num_threads() == 0


def test_threads_that_are_too_many_leave() -> None:
    engine = Threads((Job(number) for number in range(1000)), num_threads=5, depth=2)
    next(engine)
    assert num_threads() == 5
    engine.resize(2, 2)
    until(lambda: num_threads() == 2)
    engine.resize(4, 3)
    assert num_threads() == 4
    assert [next(engine)[0] for _ in range(10)] == list(range(1, 11))
    engine.close()
    assert num_threads() == 0


def test_a_thread_that_is_wanted_again_before_it_has_left_stays() -> None:
    free = threading.Event()

    class Held(Job):
        def do(self, start: int, stop: int) -> None:
            free.wait()
            super().do(start, stop)

    engine = Threads(iter([Held(0, 2), Job(1)]), num_threads=2, depth=2)
    taker = threading.Thread(target=lambda: [next(engine), next(engine)])
    taker.start()
    until(lambda: num_threads() == 2)
    engine.resize(1, 2)
    engine.resize(2, 2)
    assert num_threads() == 2
    free.set()
    taker.join()
    engine.close()


def test_resizing_before_the_first_call_and_after_the_last_starts_nothing() -> None:
    engine = Threads(iter([Job(0)]), num_threads=2, depth=2)
    engine.resize(3, 2)
    assert num_threads() == 0
    assert next(engine) == (0, 6)
    with pytest.raises(StopIteration):
        next(engine)
    engine.resize(4, 2)
    assert num_threads() == 0
    assert engine.is_dry


# ---------------------------------------------------------------- relays

INLINE, THREADS = Parallelism(0, 0, 1), Parallelism(0, 2, 2)


def switched(num_jobs: int, started: list[Parallelism], setting: Parallelism = INLINE) -> EngineSwitcher[Any]:
    def start(setting: Parallelism, segment: EngineSegment) -> Runner[Any]:
        started.append(setting)
        if setting.is_inline:
            return Inline(segment, lambda number: (number, "inline"))
        tasks = (Job(number, 2) for number in segment)
        return Threads(tasks, num_threads=setting.num_threads, depth=setting.prefetch_factor)

    return EngineSwitcher(iter(range(num_jobs)), start, setting)


def test_an_engine_goes_on_where_another_has_run_dry() -> None:
    started: list[Parallelism] = []
    switcher = switched(12, started)
    seen = []
    for number in range(12):
        seen.append(next(switcher))
        if number == 2:
            switcher.change(THREADS)
        if number == 6:
            switcher.change(INLINE)
    assert [number for number, _ in seen] == list(range(12))
    assert started == [INLINE, THREADS, INLINE]
    assert [how for _, how in seen[:3]] == ["inline"] * 3
    assert [how for _, how in seen[3:9]] == [2] * 6  # those that were begun, too
    assert [how for _, how in seen[9:]] == ["inline"] * 3
    with pytest.raises(StopIteration):
        next(switcher)
    switcher.close()


def test_a_change_at_the_very_end_starts_nothing() -> None:
    started: list[Parallelism] = []
    switcher = switched(3, started)
    assert [next(switcher)[0] for _ in range(3)] == [0, 1, 2]
    switcher.change(THREADS)
    with pytest.raises(StopIteration):
        next(switcher)
    assert started == [INLINE]


def test_a_change_that_is_taken_back_before_it_is_done_is_none() -> None:
    started: list[Parallelism] = []
    switcher = switched(20, started, THREADS)
    assert next(switcher)[0] == 0
    switcher.change(INLINE)
    switcher.change(Parallelism(0, 3, 2))
    assert [next(switcher)[0] for _ in range(19)] == list(range(1, 20))
    assert started == [THREADS, Parallelism(0, 3, 2)]
    switcher.close()
    assert num_threads() == 0


def test_an_engine_that_does_not_start_leaves_the_one_before_at_work() -> None:
    def start(setting: Parallelism, segment: EngineSegment) -> Runner[Any]:
        if not setting.is_inline:
            raise OutOfDescriptors("a channel")
        return Inline(segment, lambda number: number)

    switcher: EngineSwitcher[int] = EngineSwitcher(iter(range(6)), start, INLINE)
    assert [next(switcher), next(switcher)] == [0, 1]
    switcher.change(Parallelism(2, 0, 2))
    assert [next(switcher) for _ in range(4)] == [2, 3, 4, 5]
    assert switcher.setting == INLINE
    assert isinstance(switcher.refusal, OutOfDescriptors)


def test_a_relay_that_is_dropped_ends_its_threads() -> None:
    gc.disable()
    try:
        switcher = switched(1000, [], THREADS)
        next(switcher)
        assert num_threads() == 2
        del switcher
        assert num_threads() == 0
    finally:
        gc.enable()


def test_a_relay_between_two_engines_is_not_ready_and_closed_it_is() -> None:
    switcher = switched(100, [], THREADS)
    next(switcher)
    until(lambda: switcher.is_ready)
    switcher.change(INLINE)
    taken = 1
    while switcher.is_ready:  # what the threads have begun
        next(switcher)
        taken += 1
        time.sleep(0.01)
    assert taken <= 1 + THREADS.prefetch_factor + 1
    switcher.close()
    with pytest.raises(StopIteration):
        next(switcher)


# ---------------------------------------------------------------- workers


class Slow(KeyedOnly):
    """Samples that take a while."""

    def __getitem__(self, position: int) -> Any:
        time.sleep(0.002)
        return super().__getitem__(position)


def team() -> Team:
    (one,) = [team for team in list(team_module._teams) if team.is_running]
    return one


def steered_by_hand(loader: Any) -> tuple[Any, EngineSwitcher[Any]]:
    """Return an iterator and its switcher, which no tuner changes."""
    iterator = iter(loader)
    iterator._tuner = None
    return iterator, switcher_of(iterator)


def num_alive() -> int:
    return len([process for process in workers() if process.is_alive()])


@pytest.mark.timed
def test_workers_become_more_and_fewer_and_nobody_is_left_over() -> None:
    loader = auto(Slow(4000), batch_size=2, seed=0, num_threads=0, persistent_workers=True)
    iterator, switcher = steered_by_hand(loader)
    seen = [plain(next(iterator))]
    for count in (3, 1, 4, 2, 1):
        switcher.change(Parallelism(count, 0, 2))
        while not (switcher.is_settled and num_alive() == count):
            seen.append(plain(next(iterator)))
        assert len(seen) < 1900
    assert team().num_workers == 1
    expected = listed(stoker.DataLoader(KeyedOnly(4000), batch_size=2, seed=0))
    assert seen == expected[: len(seen)]
    iterator.close()
    del iterator, loader, switcher
    gc.collect()
    assert num_alive() == 0


def test_threads_inside_workers_become_more_and_fewer() -> None:
    class Telling(Numbers):
        def __getitem__(self, position: int) -> Any:
            time.sleep(0.001)
            return position, threading.active_count(), os.getpid()

    loader = auto(Telling(4000), batch_size=8)
    iterator, switcher = steered_by_hand(loader)
    next(iterator)
    most, positions = {}, list(range(8))
    for count in (4, 0, 2, 3, 1):
        switcher.change(Parallelism(1, count, 2))
        found = []
        for _ in range(12):
            batch = next(iterator)
            positions += batch[0].tolist()
            found.append(int(batch[1].max()))
        most[count] = found[-1]  # the main thread and one that watches the trainer are always there
    assert positions == list(range(len(positions)))
    assert most == {4: 2 + 4, 0: 2, 2: 2 + 2, 3: 2 + 3, 1: 2}
    iterator.close()


def test_a_worker_that_dies_while_there_are_too_many_is_not_replaced() -> None:
    loader = auto(Slow(2000), batch_size=2, seed=0, num_threads=0, persistent_workers=True)
    iterator, switcher = steered_by_hand(loader)
    seen = [plain(next(iterator))]
    switcher.change(Parallelism(3, 0, 2))
    while not switcher.is_settled:
        seen.append(plain(next(iterator)))
    for process in begun():
        os.kill(process.pid, 19)  # SIGSTOP: nobody can take what comes now
    switcher.change(Parallelism(1, 0, 2))
    kill(*begun())
    while not (switcher.is_settled and num_alive() == 1):
        seen.append(plain(next(iterator)))
    assert seen == listed(stoker.DataLoader(KeyedOnly(2000), batch_size=2, seed=0))[: len(seen)]
    iterator.close()


def test_one_more_worker_that_cannot_be_forked_is_done_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loader = auto(Slow(600), batch_size=2, seed=0, num_threads=0)
    iterator, switcher = steered_by_hand(loader)
    seen = [plain(next(iterator))]
    switcher.change(Parallelism(2, 0, 2))
    while not switcher.is_settled:
        seen.append(plain(next(iterator)))

    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "stoker"):
        patch.setattr(os, "fork", refuse)
        switcher.change(Parallelism(4, 0, 2))
    assert "there will be no more than 2" in caplog.text
    assert switcher.most_workers == 2
    assert switcher.is_settled
    seen += [plain(batch) for batch in iterator]
    assert seen == listed(stoker.DataLoader(KeyedOnly(600), batch_size=2, seed=0))


@pytest.mark.parametrize("how", ["raises", "dies"])
def test_one_more_worker_that_fails_at_its_start_is_done_without(how: str, caplog: pytest.LogCaptureFixture) -> None:
    def begin(worker: int) -> None:
        if worker > 1 and how == "raises":
            raise ValueError("there is no third place")
        if worker > 1:
            os.kill(os.getpid(), 9)

    loader = auto(Slow(600), batch_size=2, seed=0, num_threads=0, worker_init_fn=begin)
    iterator, switcher = steered_by_hand(loader)
    seen = [plain(next(iterator))]
    with caplog.at_level(logging.WARNING, "stoker"):
        switcher.change(Parallelism(4, 0, 2))
        while not switcher.is_settled:
            seen.append(plain(next(iterator)))
    assert "could not be started" in caplog.text
    assert switcher.most_workers == 2
    seen += [plain(batch) for batch in iterator]
    assert seen == listed(stoker.DataLoader(KeyedOnly(600), batch_size=2, seed=0))


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_workers_that_are_started_anew_become_more_and_fewer_too(start_method: str) -> None:
    loader = auto(KeyedOnly(3000), batch_size=2, seed=0, num_threads=0, multiprocessing_context=start_method)
    iterator, switcher = steered_by_hand(loader)
    seen = [plain(next(iterator))]
    for count in (2, 1):
        switcher.change(Parallelism(count, 0, 2))
        while not switcher.is_settled:
            seen.append(plain(next(iterator)))
            time.sleep(0.01)
    seen += [plain(batch) for batch in iterator]
    assert seen == listed(stoker.DataLoader(KeyedOnly(3000), batch_size=2, seed=0))
    if start_method == "forkserver":  # the standard library would keep it
        multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]


def test_a_channel_that_is_full_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is to go is asked when there is space again."""
    loader = auto(Slow(1200), batch_size=2, seed=0, num_threads=0, persistent_workers=True)
    iterator, switcher = steered_by_hand(loader)
    seen = [plain(next(iterator))]
    switcher.change(Parallelism(3, 0, 2))
    while not switcher.is_settled:
        seen.append(plain(next(iterator)))
    one = team()
    sending = one._requests[0]

    class Full:
        def __getattr__(self, name: str) -> Any:
            return getattr(sending[0], name)

        def send(self, *_: Any) -> int:
            raise BlockingIOError

    one._requests[0] = (Full(), sending[1])  # type: ignore[assignment]
    switcher.change(Parallelism(1, 0, 2))
    assert not one.is_settled
    one._requests[0] = sending
    while not (switcher.is_settled and num_alive() == 1):
        seen.append(plain(next(iterator)))
    assert seen == listed(stoker.DataLoader(KeyedOnly(1200), batch_size=2, seed=0))[: len(seen)]
    iterator.close()
