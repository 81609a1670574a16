"""Deaths, interrupts and lacks while `"auto"` finds out, chooses and changes."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

import stoker
from stoker.errors import WorkerDied, WorkerError
from stoker.foundation import machine
from stoker.tuning.parallelism import Parallelism
from tests.engine.test_resizing import num_alive, team, until
from tests.faults import test_process_faults as process_faults
from tests.faults.test_process_faults import interrupted, kill, workers
from tests.laws.test_auto_laws import steered_by_hand
from tests.loader.datasets import KeyedOnly, Numbers, listed, plain

AUTO: dict[str, Any] = {"num_workers": "auto", "num_threads": "auto", "prefetch_factor": "auto"}


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "num_cores", lambda: 4)


class Deadly(KeyedOnly):
    """Kills whoever reads its first samples, so many times."""

    def __init__(self, length: int, times: int) -> None:
        super().__init__(length)
        self.left = multiprocessing.get_context("fork").Value("i", times)

    def __getitem__(self, position: int) -> Any:
        time.sleep(0.001)
        if position < 4:
            with self.left.get_lock():
                self.left.value -= 1
                is_to_die = self.left.value >= 0
            if is_to_die:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(position)


@pytest.mark.parametrize("times", [1, 2])
def test_a_worker_killed_while_it_scouts_is_replaced_and_scouts_again(times: int) -> None:
    loader = stoker.DataLoader(Deadly(60, times), batch_size=4, seed=0, **AUTO)
    assert listed(loader) == listed(stoker.DataLoader(KeyedOnly(60), batch_size=4, seed=0))
    assert loader.auto is not None
    assert loader.auto.sample_cost is not None


def test_a_sample_that_kills_all_scouts_is_to_blame_in_its_turn() -> None:
    loader = stoker.DataLoader(Deadly(60, 1000), batch_size=4, seed=0, **AUTO)
    with pytest.raises(WorkerDied, match=r"positions 0, 1, 2, 3, step 0"):
        next(iter(loader))


def test_the_scout_is_killed_before_it_says_hello() -> None:
    loader = stoker.DataLoader(KeyedOnly(60), batch_size=4, seed=0, **AUTO)
    iterator = iter(loader)
    kill(*workers())
    assert [plain(batch) for batch in iterator] == listed(stoker.DataLoader(KeyedOnly(60), batch_size=4, seed=0))


class Waiting(Numbers):
    """Says when it is read, and waits."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        context = multiprocessing.get_context("fork")
        # no events: whoever is killed while it waits for one keeps it
        self.is_read, self.may_go_on = (context.Value("b", 0, lock=False) for _ in range(2))

    def __getitem__(self, position: int) -> int:
        self.is_read.value = 1
        until(lambda: bool(self.may_go_on.value))
        return position


def test_ctrl_c_while_scouting_ends_the_scout_and_the_next_call_goes_on() -> None:
    dataset = Waiting(60)
    iterator = iter(stoker.DataLoader(dataset, batch_size=4, **AUTO))

    def interrupt() -> None:
        until(lambda: bool(dataset.is_read.value))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    thread.join()
    assert not workers()
    dataset.may_go_on.value = 1
    assert [position for batch in iterator for position in batch.tolist()] == list(range(60))


def test_an_iterator_that_is_dropped_or_closed_before_it_scouts_leaves_nothing() -> None:
    loader = stoker.DataLoader(KeyedOnly(60), batch_size=4, **AUTO)
    iterator = iter(loader)
    assert num_alive() == 1
    iterator.close()
    assert num_alive() == 0
    iterator = iter(loader)
    del iterator
    assert num_alive() == 0
    assert len(listed(loader)) == 15


def test_an_iterator_that_is_closed_while_it_scouts_ends_there_and_chooses_nothing() -> None:
    dataset = Waiting(60)
    loader = stoker.DataLoader(dataset, batch_size=4, **AUTO)
    iterator = iter(loader)

    def close() -> None:
        until(lambda: bool(dataset.is_read.value))
        iterator.close()

    thread = threading.Thread(target=close)
    thread.start()
    with pytest.raises(StopIteration):
        next(iterator)
    thread.join()
    with pytest.raises(StopIteration):
        next(iterator)
    assert not workers()
    assert loader.auto is not None
    assert loader.auto.decisions == []
    dataset.may_go_on.value = 1
    assert [position for batch in loader for position in batch.tolist()] == list(range(60))
    assert loader.auto.sample_cost is not None


def test_of_two_iterators_over_persistent_workers_the_older_one_is_told() -> None:
    loader = stoker.DataLoader(Numbers(40), batch_size=2, num_workers="auto", persistent_workers=True)
    older, newer = iter(loader), iter(loader)
    with pytest.raises(WorkerError, match="a newer iterator has taken over"):
        next(older)
    assert [position for batch in newer for position in batch.tolist()] == list(range(40))


class Long(Numbers):
    """Takes almost as long as there is patience."""

    def __getitem__(self, position: int) -> int:
        time.sleep(0.75)
        return position


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
def test_scouting_that_takes_longer_than_the_timeout_is_no_worker_that_is_stuck(persistent: bool) -> None:
    loader = stoker.DataLoader(Long(2), batch_size=1, num_workers="auto", timeout=1.5, persistent_workers=persistent)
    assert [batch.item() for batch in loader] == [0, 1]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_threads_that_cannot_be_had_are_done_without(num_workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name in ("stoker-2", "stoker-3"):
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    loader = stoker.DataLoader(Numbers(400), batch_size=4, num_workers=num_workers, num_threads="auto")
    iterator, engine = steered_by_hand(loader)
    seen = next(iterator).tolist()
    engine.change(Parallelism(num_workers, 4, 2))
    seen += [position for batch in iterator for position in batch.tolist()]
    assert seen == list(range(400))


@pytest.mark.parametrize("at", range(0, 40, 3))
def test_ctrl_c_while_it_is_looked_whether_all_are_there_costs_nothing(at: int) -> None:
    loader = stoker.DataLoader(Slow(60), batch_size=2, seed=0, **AUTO)
    iterator, engine = steered_by_hand(loader)
    seen = [plain(next(iterator))]
    engine.change(Parallelism(2, 0, 2))
    time.sleep(0.02)  # answers lie in the channel
    interrupted(lambda: engine.is_settled, at)
    seen += [plain(batch) for batch in iterator]
    assert seen == listed(stoker.DataLoader(KeyedOnly(60), batch_size=2, seed=0))


def test_if_all_have_gone_and_no_other_can_be_had_that_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = stoker.DataLoader(Slow(4000), batch_size=4, **AUTO)
    iterator, engine = steered_by_hand(loader)
    next(iterator)
    engine.change(Parallelism(1, 0, 2))
    until(lambda: next(iterator) is not None and engine.is_settled)

    def fork() -> int:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(os, "fork", fork)
    one = team()
    one._leaving |= set(one._processes)  # as if it had said that it goes
    with pytest.raises(WorkerError, match="could not be started: .*Cannot allocate memory"):
        one._adjust()
    monkeypatch.undo()
    iterator.close()


class Slow(KeyedOnly):
    """Samples that take a while."""

    def __getitem__(self, position: int) -> Any:
        time.sleep(0.002)
        return super().__getitem__(position)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # sockets that it cut short
def test_wherever_ctrl_c_strikes_while_engines_change_no_batch_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {*process_faults.TRAINERS_SIDE, "tuned_engine.py"}
    monkeypatch.setattr(process_faults, "TRAINERS_SIDE", files)
    loader = stoker.DataLoader(KeyedOnly(100_000), batch_size=2, seed=0, **AUTO)
    assert loader.auto is not None
    loader.auto.choose(None)
    assert loader.auto.tuner is not None
    first = [Parallelism(2, 0, 1), Parallelism(1, 2, 2), Parallelism(0, 2, 1)]
    then = {2: Parallelism(1, 0, 2), 1: Parallelism(3, 0, 1), 0: Parallelism(0, 3, 2)}
    inline = stoker.DataLoader(KeyedOnly(100_000), batch_size=2, seed=0)
    num_struck = 0
    for at in range(0, 400, 10):
        loader.auto.tuner.setting = Parallelism(0, 0, 2)
        iterator, engine = steered_by_hand(loader)
        seen = [plain(next(iterator))]
        handed_over = first[at % len(first)]
        for setting in (handed_over, then[handed_over.num_workers]):

            def change_and_go_on() -> Any:
                engine.change(setting)  # noqa: B023  # called before the next one is chosen
                return next(iterator)  # noqa: B023

            struck, batch = interrupted(change_and_go_on, at)
            num_struck += struck
            seen += [] if struck else [plain(batch)]
            seen += [plain(next(iterator)) for _ in range(3)]
        iterator.close()
        expected = iter(inline)
        assert seen == [plain(next(expected)) for _ in seen], at
    assert num_struck > 10


def test_a_pilot_is_told_of_workers_that_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loader = stoker.DataLoader(Slow(100_000), batch_size=8, seed=0, num_workers="auto")
    iterator = iter(loader)
    seen = [plain(next(iterator))]

    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    assert loader.auto is not None
    with caplog.at_level(logging.INFO, "stoker"):
        while "there can be no more" not in loader.auto.decisions[-1]:
            seen.append(plain(next(iterator)))
    seen += [plain(next(iterator)) for _ in range(60)]
    assert loader.num_workers == 1
    assert "there will be no more than 1" in caplog.text
    assert caplog.text.count("there will be no more") == 1  # it is not tried again and again
    assert seen == listed(stoker.DataLoader(KeyedOnly(8 * len(seen)), batch_size=8, seed=0))
    iterator.close()


ENDING = """
import os, signal, sys, time
import stoker
from stoker.foundation import machine
machine.num_cores = lambda: 4
class Slow:
    def __len__(self): return 10**6
    def __getitem__(self, position):
        time.sleep(0.002)
        return position
loader = stoker.DataLoader(Slow(), batch_size=8, num_workers="auto", num_threads="auto", prefetch_factor="auto")
iterator = iter(loader)
for number in range(int(sys.argv[1])):
    next(iterator)
import multiprocessing
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
if sys.argv[2] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "loop":
    for batch in iterator: pass
"""


def gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not any(os.path.exists(f"/proc/{pid}") for pid in pids):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(("how", "num_batches"), [("exit", 1), ("kill", 150), ("loop", 150)])
def test_whatever_ends_the_trainer_ends_its_workers(how: str, num_batches: int) -> None:
    command = [sys.executable, "-c", ENDING, str(num_batches), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert pids
        if how == "loop":
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert gone(pids)
    if how == "exit":
        assert (process.returncode, errors) == (0, "")
    if how == "loop":
        assert errors.strip().endswith("KeyboardInterrupt")


def test_threads_that_share_an_iterator_get_each_batch_once_while_engines_change() -> None:
    loader = stoker.DataLoader(Slow(600), batch_size=2, seed=0, **AUTO)
    assert loader.auto is not None
    loader.auto.choose(None)
    assert loader.auto.tuner is not None
    loader.auto.tuner.setting = Parallelism(0, 0, 2)
    iterator, engine = steered_by_hand(loader)
    settings = [Parallelism(2, 0, 2), Parallelism(3, 0, 1), Parallelism(1, 2, 2)]
    taken: list[int] = []

    def take(number: int) -> None:
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                return
            taken.extend(batch[0].tolist())
            engine.change(settings[(number + len(taken)) % len(settings)])

    threads = [threading.Thread(target=take, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    iterator.close()
    assert sorted(taken) == list(range(600))
