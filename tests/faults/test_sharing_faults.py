"""Memory, channels and processes that others share: forks of the trainer, children of workers, loaders inside datasets.

Nobody's batch changes, nobody waits in vain, nothing grows.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

import stoker
from stoker.engine.processes import team as team_module
from stoker.engine.processes.messages import channel
from stoker.errors import ForeignProcess
from tests.loader.datasets import Numbers, plain


class Big(Numbers):
    """Samples that lie in slots; all of one value, with a mark of whose worker has made them."""

    def __init__(self, length: int, mark: Callable[[], int] = lambda: 0) -> None:
        super().__init__(length)
        self.mark = mark

    def __getitem__(self, position: int) -> Any:
        return np.full((64, 64), self.mark() + position, np.int64)


def in_a_fork(do: Callable[[], bool]) -> int:
    """Fork a child that exits with 0 if `do` returns True; return its number."""
    child = os.fork()
    if not child:
        try:
            is_well = do()
        except BaseException:
            is_well = False
        os._exit(0 if is_well else 1)
    return child


def ended_well(child: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def are_ours(loader: Any) -> bool:
    mark = os.getpid() * 1000
    for step, batch in enumerate(loader):
        time.sleep(0.001)  # so that both are at it at the same time
        wanted = torch.arange(4 * step, 4 * step + 4) + mark
        if not (batch == wanted[:, None, None]).all():
            return False
    return True


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_used_before_a_fork_may_be_used_on_both_sides(persistent: bool) -> None:
    dataset = Big(400, mark=lambda: os.getppid() * 1000)
    loader = stoker.DataLoader(dataset, batch_size=4, num_workers=2, persistent_workers=persistent)
    assert are_ours(loader)
    child = in_a_fork(lambda: are_ours(loader))
    assert are_ours(loader)
    assert ended_well(child)


def test_an_iterator_is_not_disturbed_by_a_fork_that_begins_another() -> None:
    loader = stoker.DataLoader(Big(80), batch_size=4, num_workers=1, prefetch_factor=4, persistent_workers=True)
    iterator = iter(loader)
    assert next(iterator)[0, 0, 0] == 0

    def uses_it() -> bool:
        try:
            next(iterator)
        except ForeignProcess:
            return int(next(iter(loader))[0, 0, 0]) == 0
        return False

    assert ended_well(in_a_fork(uses_it))
    assert [int(batch[0, 0, 0]) for batch in iterator] == list(range(4, 80, 4))


class Tabled(Numbers):
    """Loads a table with a loader of its own when it is first asked, and keeps it."""

    table: Any = None

    def __getitem__(self, position: int) -> Any:
        if self.table is None:
            self.table = list(stoker.DataLoader(Big(8), batch_size=8))
        assert self.table[0][:, 0, 0].tolist() == list(range(8))
        return np.full((64, 64), -1, np.int64)


def test_a_loader_inside_a_dataset_has_memory_of_its_own() -> None:
    for batch in stoker.DataLoader(Tabled(64), batch_size=8, num_workers=1):
        assert (batch == -1).all()


class Replay(Numbers):
    """Holds batches of another loader."""

    def __init__(self, items: list[Any]) -> None:
        super().__init__(len(items))
        self.items = items

    def __getitem__(self, position: int) -> int:
        return int(self.items[position][0, 0, 0])


def test_a_forked_worker_keeps_the_batches_that_its_dataset_had() -> None:
    source = iter(stoker.DataLoader(Big(64), batch_size=1, num_workers=1))
    dataset = Replay([next(source) for _ in range(4)])
    replay = stoker.DataLoader(dataset, batch_size=4, num_workers=1, persistent_workers=True)
    assert next(iter(replay)).tolist() == [0, 1, 2, 3]
    dataset.items = []  # the trainer's; the worker has its own
    for _ in range(30):
        next(source)
    assert next(iter(replay)).tolist() == [0, 1, 2, 3]
    source.close()


class Parental(Numbers):
    """Dies once, and leaves a child that holds on to all it had."""

    def __init__(self, length: int, folder: Path) -> None:
        super().__init__(length)
        self.folder = folder

    def __getitem__(self, position: int) -> int:
        note = self.folder / "child"
        if position == 3 and not note.exists():
            child = os.fork()
            if not child:
                time.sleep(60)
                os._exit(0)
            note.write_text(str(child))
            os.kill(os.getpid(), signal.SIGKILL)
        return position


def test_the_death_of_a_worker_shows_although_its_child_lives(tmp_path: Path) -> None:
    loader = stoker.DataLoader(Parental(8, tmp_path), batch_size=1, num_workers=1)
    try:
        assert [int(batch) for batch in loader] == list(range(8))
    finally:
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


def num_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_kept_batch_does_not_cost_a_descriptor_for_every_fork() -> None:
    iterator = iter(stoker.DataLoader(Big(20), batch_size=1, num_workers=1))
    kept = next(iterator)
    counts = []
    for _ in range(40):
        assert ended_well(in_a_fork(lambda: True))
        counts.append(num_descriptors())
    assert counts[-1] <= counts[0] + 1
    assert (kept == 0).all()
    iterator.close()


def test_iterations_that_are_dropped_leave_no_memory_behind() -> None:
    loader = stoker.DataLoader([np.zeros((250, 1000))] * 64, batch_size=1, num_workers=2)
    sizes = []
    for _ in range(12):
        batch = next(iter(loader))
        assert loader._ring is not None
        sizes.append(os.fstat(loader._ring.arena.descriptor).st_blocks * 512)
    del batch
    assert max(sizes[6:]) <= 1.5 * max(sizes[:6])


class Counted(IterableDataset[int]):
    """A stream of numbers."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


def test_turns_do_not_overtake_each_other_when_a_channel_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    def narrow() -> Any:
        ends = channel()
        for end in ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return ends

    monkeypatch.setattr(team_module, "channel", narrow)
    loader = stoker.DataLoader(Counted(600), batch_size=1, num_workers=1, prefetch_factor=200)
    iterator: Any = iter(loader)
    got, has_waited = [], False
    for batch in iterator:
        got.append(int(batch))
        has_waited = has_waited or bool(iterator._engine._team._backlog)
    assert has_waited
    assert got == list(range(600))


class Wide(IterableDataset[Any]):
    """A stream of arrays that lie in slots."""

    def __iter__(self) -> Iterator[Any]:
        return (np.full((100, 100), number + 1, np.int64) for number in range(12))


class LatePoll:
    """`select.poll`, in which a reply and the death of its sender come to light in the wrong order, once.

    The kernel looks at one descriptor after the other, so this is what a reply between two looks amounts to.
    """

    def __init__(self, teams: list[Any]) -> None:
        self._poll, self._teams, self._is_done = select.poll(), teams, False

    def register(self, descriptor: Any, events: int) -> None:
        self._poll.register(descriptor, events)

    def unregister(self, descriptor: Any) -> None:
        self._poll.unregister(descriptor)

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        team = self._teams[-1]
        if not self._is_done and team.queue is not None and len(team._ready) == 1:
            self._is_done = True
            replies = select.poll()
            replies.register(team._replies, select.POLLIN)
            replies.poll(5000)
            (process,) = team._processes.values()
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            return [(process.sentinel, select.POLLIN)]
        return self._poll.poll(milliseconds)


def test_what_a_worker_said_before_it_died_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    teams: list[Any] = []
    start = team_module.Team.start

    def noted(team: Any) -> None:
        teams.append(team)
        start(team)

    monkeypatch.setattr(team_module.Team, "start", noted)
    fake = SimpleNamespace(POLLIN=select.POLLIN, poll=lambda: LatePoll(teams))
    monkeypatch.setattr(team_module, "select", fake)
    batches = [batch[0] for batch in stoker.DataLoader(Wide(), batch_size=1, num_workers=1)]
    assert [sorted({*batch.flatten().tolist()}) for batch in batches] == [[number + 1] for number in range(12)]


class Telling(IterableDataset[int]):
    """Gives its state itself, not a copy of it."""

    def __init__(self) -> None:
        self.seen = [0]

    def __iter__(self) -> Iterator[int]:
        while self.seen[0] < 20:
            self.seen[0] += 1
            yield self.seen[0] - 1

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = list(state["seen"])


@pytest.mark.parametrize(
    "engine", [{}, {"num_threads": 2}, {"num_workers": 1}, {"num_workers": 1, "num_threads": 2, "prefetch_factor": 4}]
)
def test_a_state_is_that_of_its_batch_although_the_stream_is_read_on(engine: dict[str, Any]) -> None:
    loader = stoker.DataLoader(Telling(), batch_size=2, **engine)
    iterator = iter(loader)
    assert [plain(next(iterator)) for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    state = loader.state_dict()
    iterator.close()
    again = stoker.DataLoader(Telling(), batch_size=2, **engine)
    again.load_state_dict(state)
    assert plain(next(iter(again))) == [6, 7]


class Epochal(Numbers):
    """Tells which epoch it was told."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, position: int) -> int:
        return self.epoch


class EpochalStream(IterableDataset[int]):
    """The same, as a stream."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter([self.epoch] * 4)


@pytest.mark.parametrize("dataset", [Epochal, EpochalStream])
@pytest.mark.parametrize("engine", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
def test_a_chosen_epoch_reaches_the_datasets_in_all_workers(dataset: Any, engine: dict[str, Any]) -> None:
    if dataset is EpochalStream:
        engine = {**engine, "shard": "auto"}
    made = dataset(4) if dataset is Epochal else dataset()
    loader = stoker.DataLoader(made, batch_size=2, **engine)
    for epoch in (5, 6, 9):
        loader.set_epoch(epoch)
        assert [plain(batch) for batch in loader] == [[epoch] * 2] * 2


def test_starting_workers_freezes_nothing_here() -> None:
    before = gc.get_freeze_count()
    for _ in range(2):
        for _ in stoker.DataLoader(Numbers(8), batch_size=4, num_workers=1):
            pass
    assert gc.get_freeze_count() == before


EXIT = """
import threading, time, stoker
from tests.faults.test_sharing_faults import Big
if __name__ == "__main__":
    loader = stoker.DataLoader(Big(4000), batch_size=4, num_workers=2, persistent_workers={persistent})
    has_begun = threading.Event()
    def load():
        for _ in range(1000):
            for batch in loader:
                has_begun.set()
    threading.Thread(target=load, daemon=True).start()
    has_begun.wait()
"""


@pytest.mark.parametrize("persistent", [False, True])
def test_a_daemon_thread_that_loads_does_not_disturb_the_exit(persistent: bool) -> None:
    """It is kept in `next`. One that is in torch's code at that time is not ours to keep, so it does nothing else."""
    code = EXIT.format(persistent=persistent)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("persistent", [False, True])
def test_an_iterator_may_be_closed_from_another_thread(persistent: bool) -> None:
    """Wherever that thread is: a race, so it is run often, and threads take turns as often as can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for number in range(30):
            loader = stoker.DataLoader(Big(40_000), batch_size=4, num_workers=2, persistent_workers=persistent)
            iterator = iter(loader)
            next(iterator)
            thread = threading.Thread(target=lambda iterator=iterator: [None for _ in iterator])
            thread.start()
            time.sleep(number % 7 * 0.0007)
            iterator.close()
            thread.join()
            assert loader.state_dict()["epoch"] == 0  # which is not over
    finally:
        sys.setswitchinterval(before)


class Dawdling(Big):
    def __getitem__(self, position: int) -> Any:
        time.sleep(0 if position < 4 else 30)
        return super().__getitem__(position)


def test_nobody_who_closes_waits_for_a_sample_that_takes_its_time() -> None:
    iterator = iter(stoker.DataLoader(Dawdling(40), batch_size=4, num_workers=1))
    next(iterator)
    has_begun = threading.Event()

    def take() -> None:
        has_begun.set()
        assert [None for _ in iterator] == []

    thread = threading.Thread(target=take)
    thread.start()
    has_begun.wait()
    began = time.monotonic()
    iterator.close()
    thread.join()
    assert time.monotonic() - began < 25


def test_threads_may_share_an_iterator() -> None:
    iterator = iter(stoker.DataLoader(Big(400), batch_size=4, num_workers=2))
    got: list[int] = []
    threads = [threading.Thread(target=lambda: got.extend(int(batch[0, 0, 0]) for batch in iterator)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == list(range(0, 400, 4))


def test_memory_comes_back_when_kept_batches_are_let_go_between_epochs() -> None:
    loader = stoker.DataLoader(Big(400), batch_size=4, num_workers=2)
    kept = list(loader)
    assert loader._ring is not None
    assert loader._ring.num_slots >= 100
    del kept
    assert loader._ring.num_slots <= 4
    assert os.fstat(loader._ring.arena.descriptor).st_blocks * 512 <= 6 * 4 * 64 * 64 * 8


def test_fields_that_are_not_there_are_warned_of() -> None:
    loader = stoker.DataLoader([{"image": torch.zeros(3, 4, 4, dtype=torch.uint8)}] * 4, to={"imgae": torch.float32})
    with pytest.warns(UserWarning, match="fields that the first batch does not have: imgae"):
        next(iter(loader))


def test_a_replaced_worker_is_told_of_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    loader = stoker.DataLoader(Parental(8, tmp_path), batch_size=1, num_workers=1)
    try:
        assert len(list(loader)) == 8
    finally:
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    assert "worker 0 has ended (SIGKILL) and is replaced" in caplog.text
