"""`"auto"` in loaders that really run: what it chooses, and what stays as it is whatever it chooses."""

from __future__ import annotations

import _thread
import copy
import io
import logging
import multiprocessing
import os
import pickle
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as torch_data

import stoker
from stoker.compose.images import Images
from stoker.errors import ArgumentError, WorkerStuck
from stoker.foundation import machine
from stoker.loader.auto import Footprint
from stoker.loader.sharing.ranks import share_of_cores
from stoker.transform import RandomResizedCrop
from stoker.tuning.parallelism import Parallelism
from tests.compose.image_sets import InMemory
from tests.laws.test_mixtures import mixture, packed
from tests.loader.datasets import (
    Broken,
    Counting,
    KeyedMany,
    KeyedOnly,
    KeyedWhole,
    Numbers,
    Remembering,
    listed,
    plain,
)

AUTO: dict[str, Any] = {"num_workers": "auto", "num_threads": "auto", "prefetch_factor": "auto"}


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something to choose from, whatever machine this is: the datasets here sleep."""
    monkeypatch.setattr(machine, "num_cores", lambda: 8)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)


class Sleeping(Numbers):
    """Samples that wait for a disk."""

    def __init__(self, length: int = 100_000, seconds: float = 0.005) -> None:
        super().__init__(length)
        self.seconds = seconds

    def __getitem__(self, position: int) -> Any:
        time.sleep(self.seconds)
        return position


class Locked(Sleeping):
    """Samples for which a process has one lock, as the interpreter's is for Python code."""

    lock = threading.Lock()

    def __getitem__(self, position: int) -> Any:
        with self.lock:
            return super().__getitem__(position)


class Drawing(Sleeping):
    """Samples that draw from a generator that threads share."""

    def __getitem__(self, position: int) -> Any:
        return super().__getitem__(position), torch.rand(())


def first_of(loader: Any) -> Parallelism:
    """Return what was chosen at first."""
    iterator = iter(loader)
    iterator._tuner = None  # and nothing else afterwards
    next(iterator)
    iterator.close()
    assert loader.auto is not None
    return loader.auto.setting  # type: ignore[no-any-return]


def trained(
    loader: Any,
    is_done: Callable[[Parallelism], bool],
    *,
    step: float = 0.002,
    most_seconds: float = 60.0,
    restarts: bool = False,
) -> list[Any]:
    """Train until what is chosen is as it should be; return all batches.

    If that is to load inline, which workers do not become within an iteration, begin another one now and then.
    """
    batches = []
    deadline = time.monotonic() + most_seconds
    is_over = False
    while not is_over:
        is_over = True
        iterator = iter(loader)
        for batch in iterator:
            batches.append(plain(batch))
            time.sleep(step)
            if is_done(loader.auto.setting):
                iterator.close()
                return batches
            assert time.monotonic() < deadline, f"{loader.auto!r}: {loader.auto.decisions}"
            if restarts and len(batches) % 500 == 0:
                is_over = False
                break
        iterator.close()
    raise AssertionError(f"the epoch is over: {loader.auto.decisions}")


# ---------------------------------------------------------------- the first choice


@pytest.mark.timed
def test_cheap_samples_are_read_inline() -> None:
    loader = stoker.DataLoader(Numbers(100_000), batch_size=4, **AUTO)
    trained(
        loader, lambda setting: setting.is_inline, step=0.01, restarts=True
    )  # at once, unless the machine was busy just then
    assert (loader.num_workers, loader.num_threads, loader.prefetch_factor) == (0, 0, None)


@pytest.mark.timed
def test_work_that_lets_go_of_the_lock_gets_threads_in_one_process() -> None:
    def chosen() -> Parallelism:
        return first_of(stoker.DataLoader(Sleeping(seconds=0.01), batch_size=16, **AUTO))

    # where the machine is busy just then, threads may seem not to help
    assert any(setting.num_workers == 1 and setting.num_threads >= 2 for setting in (chosen() for _ in range(4)))


@pytest.mark.timed
def test_work_that_holds_it_gets_processes() -> None:
    def chosen() -> Parallelism:
        return first_of(stoker.DataLoader(Locked(seconds=0.012), batch_size=20, **AUTO))

    assert any(setting.num_workers >= 2 and setting.num_threads == 0 for setting in (chosen() for _ in range(4)))


def test_what_draws_from_generators_that_threads_share_gets_processes() -> None:
    loader = stoker.DataLoader(Drawing(), batch_size=16, **AUTO)
    assert first_of(loader).num_threads == 0
    assert loader.auto.sample_cost.draws  # type: ignore[union-attr]
    assert not scouted(stoker.DataLoader(Sleeping(), batch_size=16, **AUTO)).draws


def scouted(loader: Any) -> Any:
    first_of(loader)
    assert loader.auto.sample_cost is not None
    return loader.auto.sample_cost


@pytest.mark.parametrize(
    ("dataset", "units"),
    [
        (KeyedOnly(50), 5),
        (KeyedMany(50), 1),
        (KeyedWhole(50), 1),
        (torch_data.Subset(KeyedOnly(50), range(40)), 5),
        (torch_data.TensorDataset(torch.arange(50)), 5),
        (Images(InMemory(), transform=RandomResizedCrop(24)), 5),
        (packed("web"), 1),
        (mixture("limited", 3), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_kind_of_dataset_can_be_scouted_and_gives_what_it_gives(dataset: Any, units: int) -> None:
    shuffle = {} if isinstance(dataset, stoker.Mixture) else {"shuffle": True}
    arguments: dict[str, Any] = {"batch_size": 5, "seed": 2, **shuffle}
    loader = stoker.DataLoader(dataset, **arguments, **AUTO)
    assert listed(loader) == listed(stoker.DataLoader(dataset, **arguments))
    found = scouted(loader)
    assert found.units_of_batch == units
    assert found.batch_seconds > 0


@pytest.mark.parametrize("arguments", [{"batch_size": None}, {"batch_size": 1}, {"batch_size": 50}], ids=str)
def test_samples_one_by_one_and_all_at_once_can_be_scouted(arguments: dict[str, Any]) -> None:
    loader = stoker.DataLoader(KeyedOnly(50), **arguments, seed=1, **AUTO)
    assert listed(loader) == listed(stoker.DataLoader(KeyedOnly(50), **arguments, seed=1))
    assert scouted(loader).units_of_batch == (arguments["batch_size"] or 1)


def test_the_trainers_process_reads_nothing_while_it_is_not_known_that_it_may() -> None:
    class Telling(Sleeping):
        def __getitem__(self, position: int) -> Any:
            super().__getitem__(position)
            assert os.getpid() != trainer, "read where a fork would share what it opens"
            return position

    trainer = os.getpid()
    loader = stoker.DataLoader(Telling(40, 0.001), batch_size=4, **AUTO)
    assert [position for batch in loader for position in batch.tolist()] == list(range(40))


def test_generators_are_after_scouting_as_they_would_have_been() -> None:
    class FromAll(Sleeping):
        def __getitem__(self, position: int) -> Any:
            return super().__getitem__(position), torch.rand(()), np.random.rand()

    arguments: dict[str, Any] = {"batch_size": 4, "seed": 5, "shuffle": True}
    loader = stoker.DataLoader(FromAll(60, 0.001), **arguments, **AUTO)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    ours = listed(loader)
    assert torch.equal(torch.get_rng_state(), before)
    assert ours == listed(stoker.DataLoader(FromAll(60, 0), **arguments))


# ---------------------------------------------------------------- errors are the run's, not the probe_run's


def test_a_bad_sample_among_the_first_is_raised_in_its_turn() -> None:
    loader = stoker.DataLoader(Broken(40, {9}), batch_size=4, **AUTO)
    iterator = iter(loader)
    assert [plain(next(iterator)), plain(next(iterator))] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(ValueError, match="sample 9 is broken") as caught:
        next(iterator)
    assert any("position 9 (file-9.bin)" in note for note in caught.value.__notes__)
    assert [plain(batch) for batch in iterator] == [list(range(start, start + 4)) for start in range(12, 40, 4)]
    assert "could not be measured" in loader.auto.decisions[0]  # type: ignore[union-attr]


def test_a_bad_sample_that_is_skipped_is_counted_once() -> None:
    loader = stoker.DataLoader(Broken(40, {9}), batch_size=4, on_error="skip", seed=1, **AUTO)
    fixed = stoker.DataLoader(Broken(40, {9}), batch_size=4, on_error="skip", seed=1)
    assert listed(loader) == listed(fixed)
    assert [entry.position for entry in loader.ledger] == [9]


def test_a_sampler_that_fails_at_once_says_so() -> None:
    class Failing(torch_data.Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            yield 0
            raise OSError("no more positions")

        def __len__(self) -> int:
            return 10

    loader = stoker.DataLoader(Numbers(10), sampler=Failing(), batch_size=1, **AUTO)
    iterator = iter(loader)
    assert plain(next(iterator)) == [0]
    with pytest.raises(OSError, match="no more positions"):
        next(iterator)
    iterator.close()


def test_a_start_that_fails_is_an_error_of_the_run() -> None:
    def begin(_: int) -> None:
        raise ValueError("cannot begin")

    loader = stoker.DataLoader(Numbers(40), batch_size=4, worker_init_fn=begin, **AUTO)
    with pytest.raises(ValueError, match="cannot begin"):
        next(iter(loader))


def test_a_sample_that_hangs_is_told_after_the_timeout() -> None:
    class Hanging(Numbers):
        def __getitem__(self, position: int) -> int:
            threading.Event().wait()
            return position

    iterator = iter(stoker.DataLoader(Hanging(40), batch_size=4, timeout=0.5, **AUTO))
    with pytest.raises(WorkerStuck, match=r"no batch came within timeout=0\.5"):
        next(iterator)
    iterator.close()


def test_an_empty_epoch_is_one() -> None:
    class Nothing(torch_data.Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            return iter([])

        def __len__(self) -> int:
            return 0

    assert listed(stoker.DataLoader(Numbers(10), sampler=Nothing(), **AUTO)) == []


# ---------------------------------------------------------------- refined while training


@pytest.mark.timed
def test_hands_become_more_while_the_trainer_waits() -> None:
    loader = stoker.DataLoader(Sleeping(seconds=0.004), batch_size=8, **AUTO)
    batches = trained(loader, lambda setting: setting.concurrency >= 6)
    positions = [position for batch in batches for position in batch]
    assert positions == list(range(len(positions)))
    assert loader.auto.setting.concurrency <= 8  # type: ignore[union-attr]
    assert "the training loop waits" in loader.auto.decisions[1]  # type: ignore[union-attr]


@pytest.mark.timed
def test_processes_become_more_too() -> None:
    loader = stoker.DataLoader(Locked(seconds=0.004), batch_size=8, num_threads=0, num_workers="auto")
    batches = trained(loader, lambda setting: setting.num_workers >= 4)
    assert [position for batch in batches for position in batch] == list(range(8 * len(batches)))
    assert loader.num_workers >= 4
    assert loader.prefetch_factor == 2


@pytest.mark.timed
def test_hands_become_fewer_when_nobody_waits() -> None:
    loader = stoker.DataLoader(Sleeping(seconds=0.004), batch_size=8, num_workers=1, num_threads="auto")
    trained(loader, lambda setting: setting.num_threads >= 4)
    trained(loader, lambda setting: setting.num_threads <= 2, step=0.05)


@pytest.mark.timed
def test_a_batch_that_costs_little_beside_the_step_is_made_inline_in_the_next_iteration() -> None:
    class Light(Numbers):
        def __getitem__(self, position: int) -> int:
            return sum(range(400)) * 0 + position

    loader = stoker.DataLoader(Light(1600), batch_size=16, **AUTO)
    for _ in range(8):
        for _ in loader:
            time.sleep(0.02)
        assert loader.auto is not None
        if loader.auto.setting.is_inline:
            return
    raise AssertionError(loader.auto.decisions)  # type: ignore[union-attr]


class Heavier(Numbers):
    """Cheap until it becomes costly; perhaps with a file that is opened when samples are read that nobody scouts."""

    def __init__(self, path: Path | None) -> None:
        super().__init__(100_000)
        self.path = path
        self.file: Any = None
        self.is_costly = multiprocessing.get_context("fork").Value("b", 0, lock=False)

    def __getitem__(self, position: int) -> int:
        if self.path is not None and self.file is None and position >= 500:
            self.file = self.path.open("rb")
        if self.is_costly.value:
            time.sleep(0.004)
        return position


@pytest.mark.timed
def test_what_has_become_costly_is_not_made_inline_any_longer() -> None:
    dataset = Heavier(None)
    loader = stoker.DataLoader(dataset, batch_size=8, **AUTO)
    trained(loader, lambda setting: setting.is_inline, restarts=True)
    dataset.is_costly.value = True
    batches = trained(loader, lambda setting: not setting.is_inline)
    assert [position for batch in batches for position in batch] == list(range(8 * len(batches)))


@pytest.fixture
def begun_training() -> Iterator[Callable[[], None]]:
    """What a training does when it first computes: threads that Python knows nothing of, an open device, a pipe."""
    begun: list[int] = []
    lock = _thread.allocate_lock()
    lock.acquire()

    def begin() -> None:
        if not begun:
            begun.extend((os.open("/dev/zero", os.O_RDWR), *os.pipe()))
            _thread.start_new_thread(lock.acquire, ())

    yield begin
    lock.release()
    for number in begun:
        os.close(number)


@pytest.mark.timed
def test_what_training_itself_starts_and_opens_is_not_taken_for_reading(begun_training: Callable[[], None]) -> None:
    dataset = Heavier(None)
    loader = stoker.DataLoader(dataset, batch_size=8, **AUTO)
    number = 0

    def is_inline(setting: Parallelism) -> bool:
        nonlocal number
        number += 1
        if number == 3:
            begun_training()
        return setting.is_inline and number > 3

    trained(loader, is_inline, restarts=True)
    dataset.is_costly.value = True
    trained(loader, lambda setting: not setting.is_inline)


@pytest.mark.parametrize("what", ["memory", "pipe", "socket", "thread"])
def test_what_came_between_two_looks_is_taken_for_reading_unless_it_cannot_be(what: str) -> None:
    footprint = Footprint()
    made = footprint.watched(lambda recipe: recipe)
    assert made(1) == 1
    assert footprint.is_clean()
    is_over = threading.Event()
    with ExitStack() as stack:
        if what == "memory":  # which is among the devices, and holds files of data
            stack.enter_context(tempfile.TemporaryFile(dir="/dev/shm"))
        elif what == "pipe":
            for number in os.pipe():
                stack.callback(os.close, number)
        elif what == "socket":
            stack.enter_context(socket.socket())
        else:
            thread = threading.Thread(target=is_over.wait)
            thread.start()
            stack.callback(thread.join)
            stack.callback(is_over.set)
        assert not footprint.is_clean()
        assert made(2) == 2
    assert not footprint.is_clean()  # whatever became of it


@pytest.mark.timed
def test_unless_a_fork_would_share_what_reading_has_opened(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.touch()
    dataset = Heavier(path)
    loader = stoker.DataLoader(dataset, batch_size=8, **AUTO)
    trained(loader, lambda setting: setting.is_inline and dataset.file is not None, restarts=True)
    dataset.is_costly.value = True
    iterator = iter(loader)
    for number, batch in enumerate(iterator):
        assert batch[0] == 8 * number
        if number > 100:  # several windows, in which it would have paid
            break
    assert loader.num_workers == 0
    iterator.close()
    # nor by another loader, over a part of it, that has read nothing yet; nor by a copy
    others = [stoker.DataLoader(torch_data.Subset(dataset, range(800)), batch_size=8, **AUTO), copy.copy(loader)]
    for other in others:
        assert next(iter(other))[0] == 0
        assert other.num_workers == 0
    assert "which a fork would share" in others[0].auto.decisions[0]  # type: ignore[union-attr]
    dataset.file.close()
    dataset.is_costly = None


class Opening:
    """A file of numbers, opened when it is first read."""

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, None
        np.arange(3000, dtype="<u8").tofile(path)

    def __len__(self) -> int:
        return 3000

    def __getitem__(self, position: int) -> int:
        if self.file is None:
            self.file = self.path.open("rb")  # type: ignore[assignment]
        file: Any = self.file
        file.seek(8 * position)
        return int.from_bytes(file.read(8), "little")


def test_what_is_opened_by_reading_is_never_opened_in_the_trainer(tmp_path: Path) -> None:
    """Training and validation read parts of one dataset: whoever read inline would share its file with the forks."""
    dataset: Any = Opening(tmp_path / "numbers")
    for part in (range(1000), range(1000, 3000)):
        loader = stoker.DataLoader(torch_data.Subset(dataset, part), batch_size=8, seed=0, **AUTO)
        assert [number for batch in loader for number in batch.tolist()] == list(part)
        assert loader.auto is not None and loader.auto.sample_cost is not None
        assert loader.auto.sample_cost.leaves_traces
        assert loader.num_workers >= 1
    assert dataset.file is None


@pytest.mark.timed
def test_it_is_told_when_there_are_no_more_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "num_cores", lambda: 1)
    loader = stoker.DataLoader(Waited(4000), batch_size=4, num_workers="auto")
    for _ in loader:
        assert loader.auto is not None
        if any("there are no more cores" in decision for decision in loader.auto.decisions):
            break
    else:
        raise AssertionError(loader.auto)
    assert loader.num_workers == 1


class Waited(Numbers):
    """Takes its time, and no core."""

    def __getitem__(self, position: int) -> int:
        time.sleep(0.002)
        return position


@pytest.mark.timed
def test_what_was_found_is_kept_for_the_next_epochs() -> None:
    loader = stoker.DataLoader(Sleeping(64, 0.001), batch_size=8, **AUTO)
    listed(loader)
    auto = loader.auto
    assert auto is not None
    found, num_decisions = auto.sample_cost, len(auto.decisions)
    assert auto.setting.num_workers == 1
    listed(loader)
    assert auto.sample_cost is found
    assert all("units" not in decision for decision in auto.decisions[num_decisions:])  # no probe_run's report


def test_an_iteration_that_another_one_has_overtaken_goes_on_as_it_is() -> None:
    loader = stoker.DataLoader(Sleeping(4000, 0.0005), batch_size=4, **AUTO)
    first = iter(loader)
    seen = [plain(next(first)) for _ in range(20)]
    second = iter(loader)
    others = [plain(next(second)) for _ in range(20)]
    seen += [plain(next(first)) for _ in range(20)]
    assert seen[:20] == others
    assert seen == [list(range(start, start + 4)) for start in range(0, 160, 4)]
    first.close()
    second.close()


# ---------------------------------------------------------------- told


@pytest.mark.timed
def test_decisions_are_logged_counted_and_printed(caplog: pytest.LogCaptureFixture) -> None:
    loader = stoker.DataLoader(Sleeping(seconds=0.004), batch_size=8, **AUTO)
    with caplog.at_level(logging.INFO, "stoker"):
        trained(loader, lambda setting: setting.concurrency > 2)
    auto = loader.auto
    assert auto is not None
    assert len(auto.decisions) >= 2
    assert [f"auto: {decision}" for decision in auto.decisions] == [
        record.getMessage() for record in caplog.records if record.getMessage().startswith("auto: ")
    ]
    stats = loader.stats()
    assert stats.decisions == auto.decisions
    assert stats.config["num_threads"] == auto.setting.num_threads
    printed = io.StringIO()
    loader.report(file=printed)
    assert f"auto: {auto.decisions[-1]}" in printed.getvalue()


def test_it_is_told_as_arguments_to_paste() -> None:
    loader = stoker.DataLoader(Sleeping(40, 0.002), batch_size=8, **AUTO)
    listed(loader)
    pasted: dict[str, Any] = eval(f"dict({loader.auto})")
    again = stoker.DataLoader(Sleeping(40, 0.002), batch_size=8, **pasted)
    assert again.auto is None
    assert (again.num_workers, again.num_threads) == (loader.num_workers, loader.num_threads)
    assert repr(loader.auto).startswith(f"<Auto: {loader.auto}; ")


def test_attributes_are_numbers_as_others_expect_them() -> None:
    loader = stoker.DataLoader(Numbers(10), **AUTO)
    assert isinstance(loader, torch_data.DataLoader)
    assert (type(loader.num_workers), type(loader.num_threads), type(loader.prefetch_factor)) == (int, int, int)
    assert len(loader) == 10


def test_a_state_knows_nothing_of_it() -> None:
    arguments: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 3}
    loader, fixed = stoker.DataLoader(KeyedOnly(40), **arguments, **AUTO), stoker.DataLoader(KeyedOnly(40), **arguments)
    for _ in zip(range(4), loader):
        pass
    for _ in zip(range(4), fixed):
        pass
    assert loader.state_dict() == fixed.state_dict()


@pytest.mark.timed
@pytest.mark.parametrize("by", [copy.copy, lambda loader: pickle.loads(pickle.dumps(loader))], ids=["copy", "pickle"])
def test_a_copy_has_what_was_found_and_goes_its_own_way(by: Callable[[Any], Any]) -> None:
    loader = stoker.DataLoader(Sleeping(160, 0.001), batch_size=8, seed=0, **AUTO)
    fresh = by(loader)
    assert fresh.auto.tuner is None
    listed(loader)
    twin = by(loader)
    assert twin.auto is not loader.auto
    assert (twin.auto.setting, twin.auto.sample_cost) == (loader.auto.setting, loader.auto.sample_cost)  # type: ignore[union-attr]
    before = list(loader.auto.decisions)  # type: ignore[union-attr]
    twin.auto.setting = Parallelism(3, 0, 2)
    twin.auto.decide("to see who is told")
    assert twin.num_workers == 3
    assert loader.num_workers == 1
    assert loader.auto.decisions == before  # type: ignore[union-attr]
    assert listed(fresh) == listed(stoker.DataLoader(Sleeping(160, 0), batch_size=8))


# ---------------------------------------------------------------- arguments


@pytest.mark.parametrize("name", ["num_workers", "num_threads", "prefetch_factor"])
def test_other_words_are_refused(name: str) -> None:
    wrong: dict[str, Any] = {name: "automatic"}
    with pytest.raises(ArgumentError, match=rf"{name}='automatic' is not known") as caught:
        stoker.DataLoader(Numbers(10), **wrong)
    assert 'hint: give a number, or "auto" to have it measured' in str(caught.value)


def test_what_is_not_auto_stays() -> None:
    loader = stoker.DataLoader(Sleeping(seconds=0.003), batch_size=8, num_workers=2, prefetch_factor="auto")
    iterator = iter(loader)
    for _ in range(60):
        next(iterator)
    iterator.close()
    assert (loader.num_workers, loader.num_threads) == (2, 0)
    assert loader.auto is not None
    assert loader.auto.sample_cost is None  # there was nothing to find out


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_workers": 0, "num_threads": 0, "prefetch_factor": "auto"},
        {"prefetch_factor": "auto"},
    ],
    ids=str,
)
def test_nothing_in_flight_is_nothing_to_choose(arguments: dict[str, Any]) -> None:
    loader = stoker.DataLoader(Numbers(10), batch_size=5, **arguments)
    assert loader.auto is None
    assert (loader.num_workers, loader.prefetch_factor) == (0, None)
    assert listed(loader) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


@pytest.mark.parametrize(
    "arguments", [{"timeout": 5}, {"worker_init_fn": print}, {"persistent_workers": True}], ids=str
)
def test_what_needs_a_worker_is_not_made_inline(arguments: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    loader = stoker.DataLoader(Numbers(4000), batch_size=4, **arguments, **AUTO)
    assert len(listed(loader)) == 1000
    assert loader.num_workers > 0
    assert "inline" not in loader.auto.space.candidates("processes")  # type: ignore[union-attr]
    assert not loader.auto.space.can_be_inline  # type: ignore[union-attr]


@pytest.mark.timed
def test_threads_of_the_trainers_own_where_it_was_said_so() -> None:
    loader = stoker.DataLoader(Sleeping(seconds=0.003), batch_size=8, num_workers=0, num_threads="auto")
    batches = trained(loader, lambda setting: setting.num_threads >= 4)
    assert [position for batch in batches for position in batch] == list(range(8 * len(batches)))
    assert loader.num_workers == 0


def test_pictures_are_not_read_by_threads_of_the_trainers_own() -> None:
    loader = stoker.DataLoader(Images(InMemory(), transform=RandomResizedCrop(24)), num_threads="auto")
    assert (loader.num_workers, loader.num_threads) == (1, 0)


def test_torchs_datapipes_are_read_by_nobody_else() -> None:
    from torch.utils.data.datapipes.iter import IterableWrapper

    loader = stoker.DataLoader(IterableWrapper(range(6)), batch_size=3, **AUTO)
    assert (loader.num_workers, loader.num_threads, loader.auto) == (0, 0, None)
    assert listed(loader) == [[0, 1, 2], [3, 4, 5]]


@contextmanager
def daemon() -> Iterator[None]:
    """Be a process that must have no children."""
    config: Any = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    config["daemon"] = True
    try:
        yield
    finally:
        del config["daemon"]


def test_a_process_that_must_have_no_children_has_threads() -> None:
    with daemon():
        loader = stoker.DataLoader(Sleeping(400, 0.001), batch_size=8, **AUTO)
        assert loader.num_workers == 0
        assert loader.num_threads == 1
        assert listed(loader) == [list(range(start, start + 8)) for start in range(0, 400, 8)]
        assert loader.num_workers == 0
        plain_loader = stoker.DataLoader(Numbers(10), num_workers="auto")
        assert (plain_loader.num_workers, plain_loader.auto) == (0, None)


def test_ranks_of_one_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: len(os.sched_getaffinity(0)))
    assert share_of_cores() == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert share_of_cores() == 2
    assert stoker.DataLoader(Numbers(10), **AUTO).auto.most_workers == 2  # type: ignore[union-attr]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "64")
    assert share_of_cores() == 1
    monkeypatch.setattr(os, "cpu_count", lambda: 512)  # the launcher has given each rank some
    assert share_of_cores() == 8


# ---------------------------------------------------------------- streams


@pytest.mark.parametrize("shard", ["auto", None])
def test_a_stream_is_read_by_one_worker_in_its_own_order(shard: Any) -> None:
    loader = stoker.DataLoader(Counting(50), batch_size=4, shard=shard, **AUTO)
    assert (loader.num_workers, loader.num_threads) == (1, 0)
    assert listed(loader) == listed(stoker.DataLoader(Counting(50), batch_size=4))
    assert (loader.num_workers, loader.num_threads) == (1, 0)


def test_a_stream_that_knows_where_it_is_resumes_there() -> None:
    loader = stoker.DataLoader(Remembering(50), batch_size=4, seed=0, **AUTO)
    iterator = iter(loader)
    seen = [plain(next(iterator)) for _ in range(5)]
    state = loader.state_dict()
    iterator.close()
    again = stoker.DataLoader(Remembering(50), batch_size=4, seed=0, **AUTO)
    again.load_state_dict(state)
    assert seen + listed(again) == listed(stoker.DataLoader(Remembering(50), batch_size=4))


@pytest.mark.timed
def test_more_of_a_stream_is_in_flight_where_that_helps() -> None:
    class Bursts(Counting):
        def __iter__(self) -> Iterator[int]:
            for number in range(self.length):
                if number % 32 == 0:
                    time.sleep(0.12)
                yield number

    loader = stoker.DataLoader(Bursts(100_000), batch_size=4, num_workers="auto", prefetch_factor="auto")
    batches = trained(loader, lambda setting: setting.prefetch_factor > 4, step=0.02)
    assert [number for batch in batches for number in batch] == list(range(4 * len(batches)))
    assert loader.num_workers == 1
