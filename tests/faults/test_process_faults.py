"""Worker processes that die, hang, run out of something, or lose their trainer: the stream goes on, or says why not."""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import gc
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

import stoker
from stoker.engine.processes import team as team_module
from stoker.engine.processes import worker as worker_module
from stoker.engine.processes.totals import WorkerTotals
from stoker.errors import (
    EarlyStop,
    ForeignProcess,
    OutOfDescriptors,
    WorkerDied,
    WorkerError,
    WorkerStuck,
)
from tests.faults.test_loader_faults import family
from tests.loader.datasets import KeyedOnly, Numbers, Remembering, ShuffleBuffer, listed, plain

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes")

BIG = 6000
"""Numbers of 4 bytes: what lies in a slot and not in a message."""


class Drawing(Numbers):
    """Draws from every generator there is, and is large enough for a slot."""

    def __getitem__(self, position: int) -> Any:
        return {
            "position": position,
            "own": float(stoker.rng().random()),
            "python": random.random(),
            "numpy": float(np.random.rand()),
            "torch": torch.rand(2),
            "large": torch.full((BIG,), float(position)),
        }


class LargeKeyed(KeyedOnly):
    """Large samples that are the same whichever thread reads them."""

    def __getitem__(self, position: int) -> Any:
        return *super().__getitem__(position), torch.full((BIG,), float(position))


def workers() -> list[Any]:
    """Return the worker processes that are there now."""
    return [child for child in multiprocessing.active_children() if child.name.startswith("stoker-")]


def kill(*processes: Any) -> None:
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)


def begun() -> list[Any]:
    """Return the workers that have said so: three that die at their start, one after the other, are an error."""
    return [
        process
        for team in list(team_module._teams)
        for worker, process in team._processes.items()
        if worker in team._ready and process.is_alive()
    ]


def with_deaths(loader: Any, *, every: int = 3) -> list[Any]:
    """Return all batches, killing one worker or another every few of them."""
    choice = random.Random(5)
    batches = []
    for number, batch in enumerate(loader):
        batches.append(plain(batch))
        if number % every == 0 and (alive := begun()):
            kill(choice.choice(alive))
    return batches


# ---------------------------------------------------------------- killed from outside


@pytest.mark.parametrize("num_workers", [1, 2, 3])
@pytest.mark.parametrize("is_persistent", [False, True], ids=["each epoch", "persistent"])
def test_workers_killed_during_a_whole_epoch_leave_no_trace_in_the_stream(
    num_workers: int, is_persistent: bool
) -> None:
    arguments: dict[str, Any] = {"batch_size": 2, "shuffle": True, "seed": 3}
    inline = stoker.DataLoader(Drawing(50), **arguments)
    loader = stoker.DataLoader(Drawing(50), num_workers=num_workers, persistent_workers=is_persistent, **arguments)
    assert [with_deaths(loader), listed(loader)] == [listed(inline), listed(inline)]
    assert loader.state_dict()["digest"] == inline.state_dict()["digest"]


def test_workers_with_threads_are_replaced_alike() -> None:
    arguments: dict[str, Any] = {"batch_size": 3, "shuffle": True, "seed": 3}
    loader = stoker.DataLoader(LargeKeyed(60), num_workers=2, num_threads=2, **arguments)
    assert with_deaths(loader) == listed(stoker.DataLoader(LargeKeyed(60), **arguments))


def test_out_of_order_every_sample_still_comes_once() -> None:
    loader = stoker.DataLoader(LargeKeyed(60), batch_size=2, num_workers=3, in_order=False, seed=0)
    served = [position for batch in with_deaths(loader) for position in batch[0]]
    assert sorted(served) == list(range(60))


class LargeStream(IterableDataset[Any]):
    """A stream of samples that lie in slots."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[Any]:
        for number in self.inner:
            yield number, torch.full((BIG,), float(number))


@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize("shard", ["auto", None])
def test_streams_go_on_where_their_reader_was_killed(num_workers: int, shard: Any) -> None:
    def loader() -> Any:
        return stoker.DataLoader(
            LargeStream(ShuffleBuffer(60)), batch_size=2, num_workers=num_workers, shard=shard, seed=4
        )

    with pytest.warns(UserWarning, match="every worker reads") if shard is None and num_workers > 1 else _nothing():
        undisturbed = listed(loader())
    with pytest.warns(UserWarning, match="every worker reads") if shard is None and num_workers > 1 else _nothing():
        assert with_deaths(loader()) == undisturbed


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@pytest.mark.parametrize("num_workers", [1, 2])
def test_streams_that_know_where_they_are_go_on_from_there(num_workers: int) -> None:
    def loader() -> Any:
        return stoker.DataLoader(
            Remembering(50), batch_size=2, num_workers=num_workers, shard="auto", persistent_workers=True, seed=4
        )

    calm, disturbed = loader(), loader()
    for _ in range(2):
        assert with_deaths(disturbed) == listed(calm)


def test_workers_killed_before_they_say_hello_are_replaced() -> None:
    loader = stoker.DataLoader(LargeKeyed(20), batch_size=2, num_workers=2, seed=0)
    iterator = iter(loader)
    kill(*workers())
    assert [plain(batch) for batch in iterator] == listed(stoker.DataLoader(LargeKeyed(20), batch_size=2, seed=0))


def test_all_workers_killed_at_once_while_idle_or_busy() -> None:
    expected = listed(stoker.DataLoader(LargeKeyed(40), batch_size=2, seed=0))
    loader = stoker.DataLoader(LargeKeyed(40), batch_size=2, num_workers=3, seed=0)
    iterator = iter(loader)
    seen = []
    for number in range(20):
        seen.append(plain(next(iterator)))
        if number % 5 == 0:
            kill(*begun())
    assert seen == expected
    iterator.close()


def test_a_stopped_worker_that_is_killed_is_replaced() -> None:
    loader = stoker.DataLoader(LargeKeyed(40), batch_size=2, num_workers=2, seed=0)
    iterator = iter(loader)
    seen = [plain(next(iterator))]
    stopped = workers()[0]
    os.kill(stopped.pid, signal.SIGSTOP)
    # the other one does what is left in the channel; what the stopped one has taken waits for its end
    killer = threading.Timer(0.2, kill, [stopped])
    killer.start()
    seen += [plain(batch) for batch in iterator]
    killer.join()
    assert seen == listed(stoker.DataLoader(LargeKeyed(40), batch_size=2, seed=0))


def test_a_worker_that_dies_with_a_request_it_has_not_noted_costs_nothing() -> None:
    """The board does not show what it had; nobody else has it, so it is made again."""
    num_deaths = multiprocessing.Value("i", 0)

    def dies_before_it_notes(_: int) -> None:
        opened = worker_module._Lane.opened

        def patched(lane: Any, order: Any) -> Any:
            if order.ticket % 7 == 3:
                with num_deaths.get_lock():
                    num_deaths.value += 1
                    is_to_die = num_deaths.value < 9
                if is_to_die:
                    os.kill(os.getpid(), signal.SIGKILL)
            return opened(lane, order)

        worker_module._Lane.opened = patched  # type: ignore[method-assign, assignment]

    loader = stoker.DataLoader(LargeKeyed(80), batch_size=2, num_workers=2, seed=0, worker_init_fn=dies_before_it_notes)
    assert listed(loader) == listed(stoker.DataLoader(LargeKeyed(80), batch_size=2, seed=0))
    assert num_deaths.value >= 3


class Staged(LargeKeyed):
    """Follows a script: see the test below."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        context = multiprocessing.get_context("fork")
        self.armed, self.may_reply, self.has_taken, self.may_write = (context.Event() for _ in range(4))
        self.has_begun = context.Event()
        self.begun = context.Semaphore(0)
        self.role = -1
        self.num_orders = 0

    def begin(self, worker: int) -> None:
        self.role = worker
        if self.armed.is_set():
            self.role = -1  # a replacement
        self.begun.release()
        opened = worker_module._Lane.opened

        def patched(lane: Any, order: Any) -> Any:
            if self.armed.is_set():
                self.num_orders += 1
                if self.role == 1 and self.num_orders == 2:
                    self.has_taken.set()
                    self.may_write.wait()
            return opened(lane, order)

        worker_module._Lane.opened = patched  # type: ignore[method-assign, assignment]

    def __getitem__(self, position: int) -> Any:
        if self.armed.is_set():
            if self.role == 0:
                self.has_begun.wait()
                os.kill(os.getpid(), signal.SIGKILL)
            if self.role == 1 and self.num_orders == 1:
                self.has_begun.set()
                self.may_reply.wait()
        return super().__getitem__(position)


def test_a_slot_that_someone_may_still_write_to_is_not_used_again() -> None:
    """Worker 0 dies. While that is looked into, worker 1 answers its first order and takes a second one, but is held up
    before it notes that. The answer says nothing about the second order, whose slot stays out of use.
    """
    dataset = Staged(24)
    loader = stoker.DataLoader(
        dataset, batch_size=2, num_workers=2, seed=0, persistent_workers=True, worker_init_fn=dataset.begin
    )
    expected = listed(stoker.DataLoader(LargeKeyed(24), batch_size=2, seed=0))
    assert listed(loader) == expected  # slots have their size now
    for _ in range(2):  # also a worker that came when all was done already
        assert dataset.begun.acquire(timeout=60)
    dataset.armed.set()
    iterator = iter(loader)
    team = iterator._engine._team
    drained = team._drained

    def drained_late(number: int) -> Any:
        team._drained = drained
        dataset.may_reply.set()
        dataset.has_taken.wait()
        return drained(number)

    team._drained = drained_late
    kept = [next(iterator) for _ in range(8)]
    dataset.may_write.set()
    kept += iterator
    # same epoch, other random numbers: compare positions
    assert [batch[0].tolist() for batch in kept] == [batch[0] for batch in expected]
    for batch in kept:
        assert (batch[2] == batch[0][:, None]).all(), "a batch has changed"


# ---------------------------------------------------------------- batches that kill


class Deadly(Numbers):
    """Ends its process at one sample, in one way or another."""

    def __init__(self, length: int, how: str, at: int = 13) -> None:
        super().__init__(length)
        self.how, self.at = how, at

    def __getitem__(self, position: int) -> int:
        if position == self.at:
            faulthandler.disable()  # what it would print is of no interest here
            END[self.how]()
        return position


END: dict[str, Callable[[], Any]] = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "SIGABRT": os.abort,
    "exit code 3": lambda: os._exit(3),
    "exit code 0": lambda: os._exit(0),
}


@pytest.mark.parametrize("how", END)
def test_a_batch_that_kills_three_workers_is_named_and_passed_over(how: str) -> None:
    loader = stoker.DataLoader(Deadly(40, how), batch_size=4, num_workers=2, seed=1)
    iterator = iter(loader)
    seen = [plain(next(iterator)) for _ in range(3)]
    with pytest.raises(WorkerDied) as caught:
        next(iterator)
    assert "3 worker processes died in a row at the batch with positions 12, 13, 14, 15, step 3, epoch 0" in str(
        caught.value
    )
    assert caught.value.ends == (how,) * 3
    del caught
    state = json.loads(json.dumps(loader.state_dict()))
    assert plain(next(iterator)) == [16, 17, 18, 19]  # it goes on with the next one
    iterator.close()
    mended = stoker.DataLoader(Numbers(40), batch_size=4, seed=1)
    mended.load_state_dict(state)
    assert seen + listed(mended) == listed(stoker.DataLoader(Numbers(40), batch_size=4))


def test_a_segmentation_fault_in_native_code_is_named() -> None:
    def crash(samples: Any) -> Any:
        faulthandler.disable()  # what it would print is of no interest here
        return ctypes.string_at(0)

    loader = stoker.DataLoader(Numbers(4), batch_size=4, num_workers=1, seed=1, collate_fn=crash)
    with pytest.raises(WorkerDied, match="positions 0, 1, 2, 3, .* SIGSEGV, SIGSEGV, SIGSEGV"):
        listed(loader)


def test_a_batch_that_kills_persistent_workers_kills_again_in_the_next_epoch() -> None:
    loader = stoker.DataLoader(Deadly(24, "SIGKILL"), batch_size=4, num_workers=2, seed=1, persistent_workers=True)
    for _ in range(2):
        iterator = iter(loader)
        seen: list[Any] = []
        while True:
            try:
                seen.append(plain(next(iterator)))
            except WorkerDied:
                seen.append(None)
            except StopIteration:
                break
        assert [batch is None for batch in seen] == [number == 3 for number in range(6)]


class DeadlyBeside(Deadly):
    """Waits, the first time, until the worker has begun the next batch, too."""

    def __init__(self, length: int) -> None:
        super().__init__(length, "SIGKILL")
        context = multiprocessing.get_context("fork")
        self.has_begun_next, self.has_died = context.Event(), context.Event()

    def __getitem__(self, position: int) -> int:
        if position == 16:
            self.has_begun_next.set()
            if not self.has_died.is_set():
                time.sleep(60)  # until the end of the process
        if position == self.at and not self.has_died.is_set():
            self.has_begun_next.wait()
            self.has_died.set()
        return super().__getitem__(position)


def test_a_neighbor_in_the_same_worker_is_not_to_blame() -> None:
    """A worker with threads works on two batches at once: both die with it, and only one is the reason."""
    loader = stoker.DataLoader(DeadlyBeside(24), batch_size=4, num_workers=1, num_threads=2, seed=1)
    iterator = iter(loader)
    blamed = []
    for number in range(6):
        try:
            assert plain(next(iterator)) == list(range(4 * number, 4 * number + 4))
        except WorkerDied:
            blamed.append(number)
    iterator.close()
    del iterator, loader
    assert blamed == [3]


def test_a_stream_that_kills_is_named() -> None:
    class Ending(Numbers, IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            for number in range(10):
                if number == 5:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield number

    loader = stoker.DataLoader(Ending(10), batch_size=2, num_workers=1, seed=1)
    iterator = iter(loader)
    assert [plain(next(iterator)) for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(WorkerDied, match=r"batch 2 of epoch 0 of the stream.*SIGKILL, SIGKILL, SIGKILL"):
        next(iterator)
    iterator.close()


# ---------------------------------------------------------------- starts


def failing_init(worker: int) -> None:
    raise ValueError(f"no luck with {worker}")


def deadly_init(worker: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leaving_init(worker: int) -> None:
    sys.exit("leaving")


@pytest.mark.parametrize("is_persistent", [False, True])
@pytest.mark.parametrize(
    ("init", "kind", "shown"),
    [
        (failing_init, ValueError, "no luck with"),
        (deadly_init, WorkerDied, ". worker processes died in a row at start-up: SIGKILL, SIGKILL, SIGKILL"),
        (leaving_init, WorkerError, "SystemExit.*leaving"),
    ],
)
def test_a_start_that_fails_says_so_each_time(init: Any, kind: Any, shown: str, is_persistent: bool) -> None:
    loader = stoker.DataLoader(
        Numbers(8), batch_size=2, num_workers=2, worker_init_fn=init, persistent_workers=is_persistent
    )
    iterator = iter(loader)
    for _ in range(2):
        with pytest.raises(kind, match=shown) as caught:
            next(iterator)
        del caught
    iterator.close()


def test_what_a_worker_said_at_its_start_counts_although_its_end_shows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    take_in_one, late = team_module.Team._take_in_one, [True]

    def take_in_one_late(team: team_module.Team) -> bool:
        if not late:
            return take_in_one(team)
        late.clear()
        for process in team._processes.values():
            process.join()
        return False

    monkeypatch.setattr(team_module.Team, "_take_in_one", take_in_one_late)
    iterator = iter(stoker.DataLoader(Numbers(8), batch_size=2, num_workers=2, worker_init_fn=leaving_init))
    with pytest.raises(WorkerError, match="SystemExit.*leaving") as caught:
        next(iterator)
    del caught
    iterator.close()


# ---------------------------------------------------------------- nobody outlives the trainer

LOST = """
import ctypes, os, sys, time, torch, stoker
from torch.utils.data import Dataset
class At(Dataset):
    def __init__(self, place): self.place = place
    def __len__(self): return 1000
    def __getitem__(self, position):
        if position == 4:
            os.write(1, f"{self.place}\\n".encode())
            if self.place == "asleep": time.sleep(60)
            if self.place == "native": ctypes.PyDLL(None).sleep(60)
        return position
if __name__ == "__main__":
    iterators = []
    for place in sys.argv[2:]:
        loader = stoker.DataLoader(At(place), batch_size=2, num_workers=1, prefetch_factor=3,
            multiprocessing_context=sys.argv[1])
        iterators.append(iter(loader))
        next(iterators[-1])
    time.sleep(60)
"""


def script(folder: Path, content: str) -> str:
    path = folder / "train.py"
    path.write_text(content)
    return str(path)


def all_gone(pids: list[int], seconds: float = 15) -> bool:
    deadline = time.monotonic() + seconds
    while any(is_running(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_no_worker_outlives_a_killed_trainer(method: str, tmp_path: Path) -> None:
    """Be it idle, in a long sample, or in native code that holds the interpreter's lock.

    But not the latter with a fork server: the kernel tells only children, and a thread cannot act.
    """
    wanted = ["idle", "asleep", "native"][: 2 if method == "forkserver" else 3]
    process = subprocess.Popen(
        [sys.executable, script(tmp_path, LOST), method, *wanted], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    places = {process.stdout.readline().decode().strip() for _ in wanted}
    members = family(process.pid)
    process.kill()
    process.wait()
    process.stdout.close()
    try:
        assert places == set(wanted)
        assert len(members) > len(wanted)
        assert all_gone(members)
    finally:
        for pid in members:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)


# ---------------------------------------------------------------- out of something

SHORT = """
import os, sys, torch, stoker
from torch.utils.data import Dataset, default_collate
class Large(Dataset):
    def __len__(self): return 40
    def __getitem__(self, position): return {"image": torch.full((50_000,), float(position)), "label": position}
def check(loader):
    kept = list(loader)
    for number, batch in enumerate(kept):
        assert batch["label"].tolist() == [2 * number, 2 * number + 1]
        assert (batch["image"] == batch["label"][:, None]).all()
"""

FULL = (
    SHORT
    + """
from torch.utils.data import DataLoader
if __name__ == "__main__":
    for arguments in ({}, {"collate_fn": default_collate}, {"num_threads": 2}, {"persistent_workers": True}):
        check(stoker.DataLoader(Large(), batch_size=2, num_workers=2, **arguments))
    check(stoker.DataLoader(Large(), batch_size=2, num_workers=1, multiprocessing_context="spawn"))
    print(os.listdir("/dev/shm"), os.statvfs("/dev/shm").f_blocks * 4096)
"""
)


@pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0,
    reason="may not make a mount namespace",
)
def test_a_full_dev_shm_does_not_matter(tmp_path: Path) -> None:
    run = f"mount -t tmpfs -o size=64k tmpfs /dev/shm && exec {sys.executable} {script(tmp_path, FULL)}"
    process = subprocess.run(["unshare", "-m", "sh", "-c", run], capture_output=True, text=True, timeout=100)
    assert process.returncode == 0, process.stderr
    assert process.stdout == "[] 65536\n"


REFUSED = (
    SHORT
    + """
import re
import resource
from stoker.errors import OutOfSharedMemory
if __name__ == "__main__":
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    loader = stoker.DataLoader(Large(), batch_size=2, num_workers=2)
    iterator = iter(loader)
    shown = 0
    for _ in range(3):
        try:
            next(iterator)
        except OutOfSharedMemory as error:
            sized = re.match("no shared memory for [1-9][0-9.]* [kM]B of ", str(error))
            shown += sized is not None and "/dev/shm is not used" in str(error)
    del iterator
    # orders too long for a message lie in slots, too
    wide = stoker.DataLoader(range(90_000), batch_size=30_000, num_workers=1)
    iterator = iter(wide)
    for _ in range(3):
        try:
            next(iterator)
        except OutOfSharedMemory as error:
            shown += 1
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    del iterator
    check(loader)
    print(shown)
"""
)


def test_shared_memory_that_is_refused_is_an_error_and_no_bus_error(tmp_path: Path) -> None:
    process = subprocess.run([sys.executable, script(tmp_path, REFUSED)], capture_output=True, text=True, timeout=40)
    assert (process.returncode, process.stdout) == (0, "6\n"), process.stderr


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Let there be so many descriptors and no more."""
    highest = max(int(number) for number in os.listdir("/proc/self/fd"))
    fillers = [os.dup(0)]
    while fillers[-1] <= highest:
        fillers.append(os.dup(0))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (fillers[-1] + count + 1, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for number in fillers:
            os.close(number)


def test_too_few_descriptors_are_an_error_wherever_the_last_one_goes() -> None:
    refused: list[str] = []
    for more in range(40):
        loader = stoker.DataLoader(LargeKeyed(12), batch_size=2, num_workers=2, seed=0)
        with descriptors_left(more):
            try:
                batches = [batch[0].tolist() for batch in loader]
            except OutOfDescriptors as error:
                refused.append(str(error))
                continue
        assert batches == [[2 * step, 2 * step + 1] for step in range(6)]
        break
    assert len(refused) > 3
    assert all("hint: raise the limit (`ulimit -n" in shown for shown in refused)


def test_a_worker_that_cannot_be_replaced_is_an_error_and_nothing_is_lost() -> None:
    loader = stoker.DataLoader(LargeKeyed(40), batch_size=2, num_workers=2, seed=0)
    iterator = iter(loader)
    seen = [next(iterator)[0].tolist() for _ in range(3)]
    with descriptors_left(0):
        kill(*workers())
        with pytest.raises(OutOfDescriptors):
            while True:
                seen.append(next(iterator)[0].tolist())
    seen += [batch[0].tolist() for batch in iterator]
    assert seen == [[2 * step, 2 * step + 1] for step in range(20)]


def test_kept_batches_take_no_descriptors() -> None:
    loader = stoker.DataLoader(LargeKeyed(400), batch_size=1, num_workers=2, seed=0)
    iterator = iter(loader)
    kept = [next(iterator)]
    with descriptors_left(20):
        kept += iterator
    assert [batch[0].item() for batch in kept] == list(range(400))
    assert all((batch[2] == batch[0]).all() for batch in kept)


class Greedy(Numbers):
    """Takes memory at one sample until it is killed for it, in a group with a limit of its own."""

    def __init__(self, length: int, group: Path) -> None:
        super().__init__(length)
        self.group = group

    def __getitem__(self, position: int) -> int:
        if position == 5:
            (self.group / "cgroup.procs").write_text(str(os.getpid()))
            hoard = [bytearray(1 << 20) for _ in range(4096)]
            return len(hoard)
        return position


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group whose processes may have 48 MiB of their own."""
    for root, limit in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        group = root / f"stoker-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(48 << 20))
            (group / "cgroup.procs").read_text()
        except OSError:
            group.rmdir()
            continue
        yield group
        deadline = time.monotonic() + 5
        while True:
            try:
                group.rmdir()
                return
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
    pytest.skip("may not make a control group for memory")


def test_a_sample_that_takes_all_memory_is_named(memory_group: Path) -> None:
    loader = stoker.DataLoader(Greedy(16, memory_group), batch_size=2, num_workers=2, seed=0)
    iterator = iter(loader)
    seen = [plain(next(iterator)) for _ in range(2)]
    with pytest.raises(WorkerDied, match=r"positions 4, 5, .* SIGKILL, SIGKILL, SIGKILL\nhint: .* out of memory"):
        next(iterator)
    assert [*seen, *(plain(batch) for batch in iterator)] == [[0, 1], [2, 3], *([n, n + 1] for n in range(6, 16, 2))]


# ---------------------------------------------------------------- hangs


def hangs_in_python(event: Any) -> None:
    event.wait()


def hangs_in_native_code(event: Any) -> None:
    library = ctypes.PyDLL(None)
    while library.usleep(100_000) <= 0:  # holds the interpreter's lock; a signal may wake it up
        if event.is_set():
            break


class Hanging(Numbers):
    """Waits at one sample until it is let go."""

    def __init__(self, length: int, how: Callable[[Any], None]) -> None:
        super().__init__(length)
        self.how = how
        self.let_go = multiprocessing.get_context("fork").Event()

    def __getitem__(self, position: int) -> int:
        if position == 5:
            self.how(self.let_go)
        return position


@pytest.mark.parametrize("how", [hangs_in_python, hangs_in_native_code])
@pytest.mark.parametrize("num_threads", [0, 2])
def test_a_hang_shows_where_and_nothing_is_lost(how: Callable[[Any], None], num_threads: int) -> None:
    dataset = Hanging(16, how)
    loader = stoker.DataLoader(dataset, batch_size=4, num_workers=2, num_threads=num_threads, timeout=1.0)
    iterator = iter(loader)
    assert plain(next(iterator)) == [0, 1, 2, 3]
    with pytest.raises(WorkerStuck, match=r"no batch came within timeout=1.0 s") as caught:
        next(iterator)
    assert how.__name__ in caught.value.stacks
    assert __file__ in caught.value.stacks
    assert "worker" in caught.value.stacks
    del caught
    assert loader.state_dict()["step"] == 1
    dataset.let_go.set()
    assert [plain(batch) for batch in iterator] == [[n, n + 1, n + 2, n + 3] for n in range(4, 16, 4)]


# ---------------------------------------------------------------- Ctrl-C

TERMINAL = """
import sys, time, stoker
from torch.utils.data import Dataset
class Slow(Dataset):
    def __len__(self): return 10**6
    def __getitem__(self, position):
        time.sleep(0.01)
        return position
if __name__ == "__main__":
    kept = []
    for number, batch in enumerate(stoker.DataLoader(Slow(), batch_size=2, {engine})):
        kept.append(batch)
        if number == 2: print("ready", flush=True)
"""


@pytest.mark.parametrize(
    "engine",
    [
        "num_workers=2",
        "num_workers=2, num_threads=2, persistent_workers=True",
        "num_workers=2, multiprocessing_context='forkserver'",
    ],
)
def test_ctrl_c_in_a_terminal_ends_everything_with_one_traceback(engine: str, tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, script(tmp_path, TERMINAL.format(engine=engine))],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    shown = b""
    while b"ready" not in shown:
        shown += os.read(ours, 4096)
    members = family(process.pid)
    os.write(ours, b"\x03")
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # nobody has the terminal any more
            break
        if not part:
            break
        shown += part
    os.close(ours)
    process.wait(timeout=10)
    text = shown.decode()
    assert process.returncode == -signal.SIGINT, text
    assert text.count("Traceback (most recent call last)") == 1, text
    assert text.rstrip().endswith("KeyboardInterrupt"), text
    assert all_gone([pid for pid in members if pid != process.pid])


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("where", ["ending", "_drained"])
def test_ctrl_c_while_workers_are_ended_leaves_none(
    where: str, persistent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = stoker.DataLoader(Numbers(200), batch_size=2, num_workers=2, persistent_workers=persistent)
    iterator = iter(loader)
    seen = next(iterator).tolist()
    owner: Any = WorkerTotals if where == "ending" else team_module.Team
    real, is_armed = getattr(owner, where), True

    def struck(one: Any, number: int) -> Any:
        nonlocal is_armed
        if is_armed:
            is_armed = False
            raise KeyboardInterrupt
        return real(one, number)

    monkeypatch.setattr(owner, where, struck)
    (team,) = [team for team in list(team_module._teams) if team.is_running]
    with pytest.raises(KeyboardInterrupt):
        team.stop()
    assert not workers()
    seen += [position for batch in iterator for position in batch.tolist()]  # and the next call goes on
    assert seen == list(range(200))


TRAINERS_SIDE = {"team.py", "engine.py", "ring.py", "batch_pickle.py", "messages.py"}


def interrupted(do: Callable[[], Any], at: int) -> tuple[bool, Any]:
    """Return whether Ctrl-C struck at line `at` of those of the engine that do() runs through; otherwise its result."""
    trainer, lines_left = os.getpid(), at

    def is_ours(frame: Any) -> bool:
        if frame.f_code.co_filename.rpartition("/")[2] not in TRAINERS_SIDE or os.getpid() != trainer:
            return False
        while frame is not None:  # ending after a first Ctrl-C, and starting processes, are other matters
            if frame.f_code.co_name in (
                "stop",
                "_open_channels",  # interrupts are held
                "make_sure_of_descriptors",
                "_before",  # the hooks of a fork, during which interrupts are held
                "_after_in_parent",
            ):
                return False
            frame = frame.f_back
        return True

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal lines_left
        if event == "call" and not is_ours(frame):
            return None
        if event == "line":
            lines_left -= 1
            # Not while an exception is handled: CPython never forgets one that a trace function has cut short.
            if lines_left < 0 and sys.exc_info()[0] is None:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        return False, do()
    except KeyboardInterrupt:
        return True, None
    finally:
        sys.settrace(previous)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # sockets that it cut short
@pytest.mark.parametrize("times", [1, 2], ids=["while loading", "while starting again"])
def test_wherever_ctrl_c_strikes_the_same_iterator_goes_on(times: int) -> None:
    """In any line of the engine: nothing is lost, nothing comes twice, nothing waits forever."""
    loader = stoker.DataLoader(LargeKeyed(2000), batch_size=2, num_workers=1, seed=0)
    iterator = iter(loader)
    seen = [next(iterator)[0].tolist() for _ in range(3)]
    at = num_struck = 0
    while True:
        struck, batch = interrupted(iterator.__next__, at)
        if not struck:
            seen.append(batch[0].tolist())
            break  # there are no more lines
        num_struck += 1
        if times == 2:
            struck, batch = interrupted(iterator.__next__, at)
            if not struck:
                seen.append(batch[0].tolist())
        seen += [next(iterator)[0].tolist() for _ in range(2)]
        at += 3 if times == 1 else 7
    iterator.close()
    assert num_struck > 10
    assert seen == [[n, n + 1] for n in range(0, 2 * len(seen), 2)]


# ---------------------------------------------------------------- odd exceptions


class NeedsTwo(Exception):
    def __init__(self, one: int, two: str) -> None:
        super().__init__(f"{one} and {two}")


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("has a lock")
        self.lock = threading.Lock()


def local_class() -> Exception:
    class Inner(Exception):
        pass

    return Inner("from inside a function")


ODD: dict[str, tuple[Callable[[], BaseException], type[BaseException], str]] = {
    "two arguments": (lambda: NeedsTwo(1, "two"), NeedsTwo, "1 and two"),
    "unpicklable": (Unpicklable, Unpicklable, "has a lock"),
    "huge": (lambda: ValueError("too much", bytes(200 << 20)), ValueError, "too much"),
    "local": (local_class, WorkerError, "from inside a function"),
    "group": (
        lambda: ExceptionGroup("several", [ValueError("first"), OSError(2, "second")]),
        ExceptionGroup,
        "several",
    ),
    "stop": (lambda: StopIteration("early"), EarlyStop, "StopIteration"),
    "exit": (lambda: SystemExit(3), WorkerError, "SystemExit"),
    "interrupt": (lambda: KeyboardInterrupt("odd"), WorkerError, "KeyboardInterrupt"),
}


class Raising(Numbers):
    def __init__(self, length: int, what: str) -> None:
        super().__init__(length)
        self.what = what

    def __getitem__(self, position: int) -> int:
        if position == 5:
            raise ODD[self.what][0]()
        return position


@pytest.mark.parametrize("num_threads", [0, 2])
@pytest.mark.parametrize("what", ODD)
def test_odd_exceptions_arrive_readable_and_the_next_batch_comes(what: str, num_threads: int) -> None:
    _, kind, shown = ODD[what]
    loader = stoker.DataLoader(Raising(12, what), batch_size=2, num_workers=1, num_threads=num_threads, seed=0)
    iterator = iter(loader)
    assert [plain(next(iterator)) for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(kind) as caught:
        next(iterator)
    error = caught.value
    assert shown in str(error)
    told = "".join(traceback.format_exception(error))
    assert "in __getitem__" in told or kind is EarlyStop  # whose place nobody can tell
    assert len(told) < 50_000
    assert "raised in worker 0" in told
    del caught, error
    assert [plain(batch) for batch in iterator] == [[6, 7], [8, 9], [10, 11]]


# ---------------------------------------------------------------- odd lives


@pytest.mark.parametrize("is_persistent", [False, True])
def test_an_iterator_dropped_half_way_leaves_nothing(is_persistent: bool) -> None:
    loader = stoker.DataLoader(LargeKeyed(100), batch_size=2, num_workers=2, persistent_workers=is_persistent, seed=0)
    kept = []
    for _ in range(3):
        iterator = iter(loader)
        kept.append(next(iterator))
        del iterator
    assert [batch[0].tolist() for batch in kept] == [[0, 1]] * 3
    cycle: list[Any] = [iter(loader)]
    cycle.append(cycle)
    kept.append(next(cycle[0]))
    del cycle, loader
    gc.collect()
    assert not workers()
    assert all((batch[2] == batch[0][:, None]).all() for batch in kept)


def test_two_iterators_of_one_loader_at_once() -> None:
    loader = stoker.DataLoader(LargeKeyed(20), batch_size=2, num_workers=2, order="shuffle", seed=0)
    both = list(zip(loader, loader))
    inline = stoker.DataLoader(LargeKeyed(20), batch_size=2, order="shuffle", seed=0)
    assert [[plain(pair[side]) for pair in both] for side in (0, 1)] == [listed(inline), listed(inline)]


def test_an_iterator_is_refused_in_a_forked_child_and_its_batches_are_not() -> None:
    loader = stoker.DataLoader(LargeKeyed(40), batch_size=2, num_workers=2, seed=0)
    iterator = iter(loader)
    batch = next(iterator)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            next(iterator)
        except ForeignProcess:
            os.write(writing, b"refused")
        iterator.close()
        del iterator, loader
        gc.collect()
        os.write(writing, b" and kept" if (batch[2] == batch[0][:, None]).all() else b" and lost")
        os._exit(0)
    os.close(writing)
    rest = [each[0].tolist() for each in iterator]
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(reading, 100) == b"refused and kept"
    os.close(reading)
    assert rest == [[n, n + 1] for n in range(2, 40, 2)]


def test_a_loader_works_in_another_thread() -> None:
    seen: list[Any] = []
    thread = threading.Thread(
        target=lambda: seen.extend(with_deaths(stoker.DataLoader(LargeKeyed(40), batch_size=2, num_workers=2, seed=0)))
    )
    thread.start()
    thread.join()
    assert seen == listed(stoker.DataLoader(LargeKeyed(40), batch_size=2, seed=0))


def load_in_a_daemon(results: Any) -> None:
    try:
        results.put(listed(stoker.DataLoader(Numbers(4), batch_size=2, num_workers=1)))
    except BaseException as error:
        results.put(f"{type(error).__name__}: {error}")


def test_a_daemonic_process_may_have_no_workers_and_is_told_so() -> None:
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    process = context.Process(target=load_in_a_daemon, args=(results,), daemon=True)
    process.start()
    error = results.get()
    assert "daemonic processes are not allowed to have children" in error
    assert "num_workers=0, num_threads=..." in error
    process.join()
    results.close()


EXIT = (
    SHORT
    + """
import threading
if __name__ == "__main__":
    kept = []
    for arguments in ({}, {"persistent_workers": True}, {"num_threads": 2}):
        loader = stoker.DataLoader(Large(), batch_size=2, num_workers=2, **arguments)
        iterator = iter(loader)
        kept += [iterator, next(iterator), next(iterator)]
    cycle = [kept]
    cycle.append(cycle)
"""
)


def test_the_interpreter_ends_quietly_with_live_iterators_and_kept_batches(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore::DeprecationWarning", script(tmp_path, EXIT)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")


def test_nothing_of_ours_is_ever_in_dev_shm() -> None:
    before = set(os.listdir("/dev/shm"))
    loader = stoker.DataLoader(LargeKeyed(40), batch_size=2, num_workers=2, seed=0)
    for number, _ in enumerate(loader):
        if number == 5:
            assert not {name for name in set(os.listdir("/dev/shm")) - before if "stoker" in name}
            assert not [name for name in os.listdir("/dev/shm") if str(os.getpid()) in name]
            assert not [name for name in os.listdir("/dev/shm") if any(str(w.pid) in name for w in workers())]
