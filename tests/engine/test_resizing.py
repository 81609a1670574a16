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
from stoker.engine.processes import team as team_module
from stoker.engine.processes.team import Team
from stoker.engine.threads import Threads
from stoker.tuning.parallelism import Parallelism
from tests.faults.test_process_faults import begun, kill, workers
from tests.laws.test_auto_laws import auto, steered_by_hand
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


# ---------------------------------------------------------------- from inline to another engine


def inline_first(length: int) -> Any:
    """Return a loader that begins inline and may have threads in this process."""
    loader = auto(Numbers(length), batch_size=2, num_workers=0)
    loader.auto.choose(None)
    loader.auto.tuner.setting = Parallelism(0, 0, 2)
    return loader


def test_threads_go_on_where_inline_loading_has_ended() -> None:
    iterator, engine = steered_by_hand(inline_first(24))
    seen = [next(iterator).tolist() for _ in range(3)]
    assert num_threads() == 0
    engine.change(Parallelism(0, 2, 2))
    assert not engine.is_settled
    seen.append(next(iterator).tolist())
    until(lambda: engine.is_settled)
    assert num_threads() == 2
    engine.change(Parallelism(0, 3, 2))
    seen += [batch.tolist() for batch in iterator]
    assert seen == [[number, number + 1] for number in range(0, 24, 2)]
    assert num_threads() == 0


def test_a_change_at_the_very_end_adds_nothing() -> None:
    iterator, engine = steered_by_hand(inline_first(6))
    assert [next(iterator).tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    engine.change(Parallelism(0, 2, 2))
    with pytest.raises(StopIteration):
        next(iterator)
    assert num_threads() == 0


def test_a_change_that_is_taken_back_before_it_is_done_is_none() -> None:
    iterator, engine = steered_by_hand(inline_first(40))
    seen = [next(iterator).tolist()]
    engine.change(Parallelism(0, 2, 2))
    engine.change(Parallelism(0, 0, 2))
    assert engine.is_settled
    seen.append(next(iterator).tolist())
    assert num_threads() == 0
    assert seen + [batch.tolist() for batch in iterator] == [[number, number + 1] for number in range(0, 40, 2)]


def test_workers_that_do_not_start_leave_inline_loading_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = auto(Numbers(12), batch_size=2, num_threads=0)
    loader.auto.choose(None)
    loader.auto.tuner.setting = Parallelism(0, 0, 2)
    iterator, engine = steered_by_hand(loader)
    seen = [next(iterator).tolist() for _ in range(2)]

    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    engine.change(Parallelism(2, 0, 2))
    seen += [batch.tolist() for batch in iterator]
    assert seen == [[number, number + 1] for number in range(0, 12, 2)]
    assert engine.setting.is_inline
    assert engine.most_workers == 0


def test_an_iterator_that_is_dropped_ends_its_threads() -> None:
    gc.disable()
    try:
        iterator, engine = steered_by_hand(inline_first(1000))
        next(iterator)
        engine.change(Parallelism(0, 2, 2))
        next(iterator)
        assert num_threads() == 2
        del iterator, engine
        assert num_threads() == 0
    finally:
        gc.enable()


def test_only_what_is_loaded_ahead_is_ready() -> None:
    iterator, engine = steered_by_hand(inline_first(1000))
    next(iterator)
    engine.change(Parallelism(0, 2, 2))
    assert not engine.is_ready
    next(iterator)
    until(lambda: engine.is_ready)
    iterator.close()
    with pytest.raises(StopIteration):
        next(engine)


# ---------------------------------------------------------------- workers


class Slow(KeyedOnly):
    """Samples that take a while."""

    def __getitem__(self, position: int) -> Any:
        time.sleep(0.002)
        return super().__getitem__(position)


def team() -> Team:
    (one,) = [team for team in list(team_module._teams) if team.is_running]
    return one


def num_alive() -> int:
    return len([process for process in workers() if process.is_alive()])


@pytest.mark.timed
def test_workers_become_more_and_fewer_and_nobody_is_left_over() -> None:
    loader = auto(Slow(4000), batch_size=2, seed=0, num_threads=0, persistent_workers=True)
    iterator, engine = steered_by_hand(loader)
    seen = [plain(next(iterator))]
    for count in (3, 1, 4, 2, 1):
        engine.change(Parallelism(count, 0, 2))
        while not (engine.is_settled and num_alive() == count):
            seen.append(plain(next(iterator)))
        assert len(seen) < 1900
    assert team().num_workers == 1
    expected = listed(stoker.DataLoader(KeyedOnly(4000), batch_size=2, seed=0))
    assert seen == expected[: len(seen)]
    iterator.close()
    del iterator, loader, engine
    gc.collect()
    assert num_alive() == 0


def test_threads_inside_workers_become_more_and_fewer() -> None:
    class Telling(Numbers):
        def __getitem__(self, position: int) -> Any:
            time.sleep(0.001)
            return position, threading.active_count(), os.getpid()

    loader = auto(Telling(4000), batch_size=8)
    iterator, engine = steered_by_hand(loader)
    next(iterator)
    most, positions = {}, list(range(8))
    for count in (4, 0, 2, 3, 1):
        engine.change(Parallelism(1, count, 2))
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
    iterator, engine = steered_by_hand(loader)
    seen = [plain(next(iterator))]
    engine.change(Parallelism(3, 0, 2))
    while not engine.is_settled:
        seen.append(plain(next(iterator)))
    for process in begun():
        os.kill(process.pid, 19)  # SIGSTOP: nobody can take what comes now
    engine.change(Parallelism(1, 0, 2))
    kill(*begun())
    while not (engine.is_settled and num_alive() == 1):
        seen.append(plain(next(iterator)))
    assert seen == listed(stoker.DataLoader(KeyedOnly(2000), batch_size=2, seed=0))[: len(seen)]
    iterator.close()


def test_one_more_worker_that_cannot_be_forked_is_done_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loader = auto(Slow(600), batch_size=2, seed=0, num_threads=0)
    iterator, engine = steered_by_hand(loader)
    seen = [plain(next(iterator))]
    engine.change(Parallelism(2, 0, 2))
    while not engine.is_settled:
        seen.append(plain(next(iterator)))

    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "stoker"):
        patch.setattr(os, "fork", refuse)
        engine.change(Parallelism(4, 0, 2))
    assert "there will be no more than 2" in caplog.text
    assert engine.most_workers == 2
    assert engine.is_settled
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
    iterator, engine = steered_by_hand(loader)
    seen = [plain(next(iterator))]
    with caplog.at_level(logging.WARNING, "stoker"):
        engine.change(Parallelism(4, 0, 2))
        while not engine.is_settled:
            seen.append(plain(next(iterator)))
    assert "could not be started" in caplog.text
    assert engine.most_workers == 2
    seen += [plain(batch) for batch in iterator]
    assert seen == listed(stoker.DataLoader(KeyedOnly(600), batch_size=2, seed=0))


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_workers_that_are_started_anew_become_more_and_fewer_too(start_method: str) -> None:
    loader = auto(KeyedOnly(3000), batch_size=2, seed=0, num_threads=0, multiprocessing_context=start_method)
    iterator, engine = steered_by_hand(loader)
    seen = [plain(next(iterator))]
    for count in (2, 1):
        engine.change(Parallelism(count, 0, 2))
        while not engine.is_settled:
            seen.append(plain(next(iterator)))
            time.sleep(0.01)
    seen += [plain(batch) for batch in iterator]
    assert seen == listed(stoker.DataLoader(KeyedOnly(3000), batch_size=2, seed=0))
    if start_method == "forkserver":  # the standard library would keep it
        multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]


def test_a_channel_that_is_full_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is to go is asked when there is space again."""
    loader = auto(Slow(1200), batch_size=2, seed=0, num_threads=0, persistent_workers=True)
    iterator, engine = steered_by_hand(loader)
    seen = [plain(next(iterator))]
    engine.change(Parallelism(3, 0, 2))
    while not engine.is_settled:
        seen.append(plain(next(iterator)))
    one = team()
    sending = one._requests[0]

    class Full:
        def __getattr__(self, name: str) -> Any:
            return getattr(sending[0], name)

        def send(self, *_: Any) -> int:
            raise BlockingIOError

    one._requests[0] = (Full(), sending[1])  # type: ignore[assignment]
    engine.change(Parallelism(1, 0, 2))
    assert not one.is_settled
    one._requests[0] = sending
    while not (engine.is_settled and num_alive() == 1):
        seen.append(plain(next(iterator)))
    assert seen == listed(stoker.DataLoader(KeyedOnly(1200), batch_size=2, seed=0))[: len(seen)]
    iterator.close()
