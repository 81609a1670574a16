"""A loader that is watched gives what it gives, and tells how it went; afterwards everything is as it was."""

from __future__ import annotations

import copy
import gc
import multiprocessing.queues
import os
import pickle
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data.dataloader
from torch.utils.data import DataLoader as TorchLoader

import stoker
from stoker import DataLoader
from stoker.errors import ArgumentError
from stoker.lab.diagnose.doctor import doctor
from stoker.lab.watch.hook import probe, recording
from stoker.lab.watch.hook.install import attach, detach
from stoker.lab.watch.watch import WatchSession, watch
from tests.lab.pathologies import Counting, Meeting, Quick, SharedStream, Sleeping, Stream, slow_start

pytestmark = pytest.mark.timed

KINDS = pytest.mark.parametrize("kind", [TorchLoader, DataLoader], ids=["torch", "stoker"])


def folders() -> list[str]:
    return [name for place in ("/dev/shm", "/tmp") for name in os.listdir(place) if name.startswith("stoker-doctor-")]


@pytest.fixture(autouse=True)
def everything_is_as_it_was() -> Iterator[None]:
    """Fail a test after which torch, multiprocessing or a folder are not what they were before."""
    data = torch.utils.data
    parts: dict[str, Callable[[], Any]] = {
        "iter": lambda: data.DataLoader.__iter__,
        "init": lambda: data.DataLoader.__init__,
        "next": lambda: data.dataloader._BaseDataLoaderIter.__next__,
        "fetch": lambda: data._utils.fetch._MapDatasetFetcher.fetch,
        "pickler": lambda: multiprocessing.queues._ForkingPickler,  # type: ignore[attr-defined]
        "ours": lambda: DataLoader.__iter__,
        "next of ours": lambda: stoker.loader.iterator.LoaderIterator.__next__,
    }
    before = {name: part() for name, part in parts.items()}
    yield
    gc.collect()
    assert {name: part() for name, part in parts.items()} == before
    assert recording.current is None
    assert [name for name in folders() if f"-{os.getpid()}-" in name] == []


@KINDS
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_length_and_attributes_are_the_loaders_own(kind: Any, num_workers: int) -> None:
    def make() -> Any:
        torch.manual_seed(3)
        return kind(Quick(100), batch_size=8, num_workers=num_workers, shuffle=True, drop_last=True)

    plain = list(make())
    loader = make()
    with watch(loader) as watched:
        seen = list(watched)
        assert len(watched) == len(loader) == 12
        assert watched.batch_size == 8
        assert watched.dataset is loader.dataset
        with pytest.raises(AttributeError):
            _ = watched.nothing
    assert len(seen) == len(plain)
    assert all(torch.equal(one, other) for one, other in zip(seen, plain))


@KINDS
@pytest.mark.parametrize("start_method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_each_batch_is_shown_with_who_made_it_and_when(kind: Any, start_method: str, tmp_path: Path) -> None:
    dataset = Meeting(0.002, 96, num=2, folder=tmp_path)
    loader = kind(dataset, batch_size=8, num_workers=2, multiprocessing_context=start_method)
    with watch(loader) as watched:
        assert sum(len(batch) for batch in watched) == 96
        (stats,) = watched.run().loaders
    assert stats.num_batches == 12
    assert stats.num_samples == 96
    assert stats.num_bytes == 96 * 16 * 4
    assert stats.making_seconds.p50 >= 0.016
    assert stats.stages["read"].busy_seconds >= 0.19
    assert stats.laps is not None
    laps = {name: np.array(column) for name, column in stats.laps.items()}
    assert sorted(set(laps["worker"])) == [0, 1]
    for earlier, later in (("began", "made"), ("made", "sent"), ("sent", "handed"), ("asked", "handed")):
        assert (laps[earlier] <= laps[later]).all(), (earlier, later)
    assert sorted(worker.role for worker in stats.workers) == ["worker 0", "worker 1"]
    assert sum(worker.num_batches or 0 for worker in stats.workers) == 12


@KINDS
def test_workers_that_stay_are_followed_from_epoch_to_epoch(kind: Any) -> None:
    loader = kind(Sleeping(0.001, 64), batch_size=8, num_workers=2, persistent_workers=True)
    with watch(loader) as watched:
        for epoch in range(3):
            for number, _ in enumerate(watched):
                if epoch == 1 and number == 2:
                    break  # what was prefetched is thrown away
        (stats,) = watched.run().loaders
    assert stats.num_iterations == 3
    assert stats.num_batches == 8 + 3 + 8
    assert len(stats.first_batch_seconds) == 3
    assert stats.making_seconds.num == 19
    assert stats.making_seconds.p50 >= 0.008
    assert stats.laps is not None
    assert (np.array(stats.laps["made"]) <= np.array(stats.laps["handed"])).all()
    del loader


def test_workers_that_are_new_in_each_epoch_are_added_up() -> None:
    loader: Any = TorchLoader(Quick(64), batch_size=8, num_workers=2)
    with watch(loader) as watched:
        for _ in range(3):
            assert sum(1 for _ in watched) == 8
        (stats,) = watched.run().loaders
    assert stats.num_batches == 24
    assert [worker.num_batches for worker in stats.workers] == [12, 12]
    assert all(worker.cpu_seconds > 0 for worker in stats.workers)


@KINDS
def test_a_stream_is_watched(kind: Any) -> None:
    loader = kind(SharedStream(200), batch_size=8, num_workers=2)
    with watch(loader) as watched:
        assert sum(len(batch) for batch in watched) == 200
        (stats,) = watched.run().loaders
    assert stats.config["is_iterable"]
    assert stats.num_samples == 200
    assert stats.duplicate_share == 0.0


class Failing(Quick):
    def __getitem__(self, position: int) -> torch.Tensor:
        if position == 20:
            raise ValueError("a bad sample")
        return super().__getitem__(position)


@KINDS
@pytest.mark.parametrize("num_workers", [0, 1])
def test_errors_come_as_they_would(kind: Any, num_workers: int) -> None:
    with watch(kind(Failing(64), batch_size=8, num_workers=num_workers)) as watched:
        iterator = iter(watched)
        assert len([next(iterator), next(iterator)]) == 2
        with pytest.raises(ValueError, match="a bad sample"):
            next(iterator)
        assert sum(1 for _ in iterator) == 5
        del iterator
        (stats,) = watched.run().loaders
    assert stats.num_batches == 7


def test_leaving_early_ends_the_threads_and_can_be_asked_about() -> None:
    watched = watch(TorchLoader(Sleeping(0.001), batch_size=8))
    for number, _ in enumerate(watched):
        if number == 20:
            assert any(thread.name == "stoker-probe" for thread in threading.enumerate())
            assert watched.run().loaders[0].num_batches == 21
            break
    gc.collect()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("stoker-")]
    assert watched.run().loaders[0].num_batches == 21
    watched.close()
    assert watched.run().loaders[0].num_batches == 21
    assert watched.diagnosis().verdict in ("storage-bound", "noisy-neighbour")


FORKING = """
import os, threading

seen = []
# what is registered first runs last: after ours
os.register_at_fork(before=lambda: seen.append([thread.name for thread in threading.enumerate()]))

from torch.utils.data import DataLoader
from stoker.lab.watch.watch import watch
from tests.lab.pathologies import Sleeping


def names():
    return {thread.name for thread in threading.enumerate()}


with watch(DataLoader(Sleeping(0.0005), batch_size=4)) as watched:
    for number, _ in enumerate(watched):
        if number == 5:
            assert names() >= {"stoker-probe", "stoker-monitor"}
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
            assert seen == [["MainThread"]], seen
            assert names() >= {"stoker-probe", "stoker-monitor"}
            break
"""


def test_no_thread_of_ours_is_there_when_a_process_is_forked() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", FORKING], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Ahead(TorchLoader):  # type: ignore[type-arg]
    """Hands out each batch when it has the next one, as launchers' loaders do."""

    def __iter__(self) -> Any:
        before = None
        for batch in super().__iter__():
            if before is not None:
                yield before
            before = batch
        yield before


class Apart(TorchLoader):  # type: ignore[type-arg]
    """Has an iterator of its own, which is none of torch's."""

    def __iter__(self) -> Any:
        return iter([torch.zeros(8, 2)] * 10)


def test_loaders_that_derive_from_torchs_are_watched_in_their_own_way() -> None:
    for kind, known, num_batches in ((Ahead, "torch", 8), (Apart, "iterable", 9)):
        with watch(kind(Quick(64), batch_size=8)) as watched:
            assert sum(1 for _ in watched) == (8 if kind is Ahead else 10)
            (stats,) = watched.run().loaders
        assert (stats.kind, stats.num_batches) == (known, num_batches)  # of one apart, the first tells who it is


class Standing:
    """Stands for a loader as that of accelerate does: says to be one, and hands out each batch when it has the next."""

    def __init__(self, loader: Any) -> None:
        self.base_dataloader = loader

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.base_dataloader)

    def __getattr__(self, name: str) -> Any:
        if name == "base_dataloader":
            raise AttributeError(name)
        return getattr(self.base_dataloader, name)

    def __iter__(self) -> Any:
        batches = iter(self.base_dataloader)
        before = next(batches)
        for batch in batches:
            yield before
            before = batch
        yield before


class Passing:
    """Passes on what a loader gives, in batches of so many."""

    def __init__(self, loader: Any, num_together: int = 1, seconds: float = 0.0) -> None:
        self.loader, self.num_together, self.seconds = loader, num_together, seconds

    def __iter__(self) -> Any:
        held = []
        for batch in self.loader:
            held.append(batch)
            if len(held) == self.num_together:
                time.sleep(self.seconds)
                yield torch.cat(held)
                held.clear()


@KINDS
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("wrapper", [Standing, Passing])
def test_of_what_stands_for_a_loader_the_loader_is_reported(wrapper: Any, num_workers: int, kind: Any) -> None:
    loader = kind(Sleeping(0.002, 96), batch_size=8, num_workers=num_workers)
    with watch(wrapper(loader), name="mine") as watched:
        for _ in range(2):
            assert sum(len(batch) for batch in watched) == 96
        (stats,) = watched.run().loaders
    assert (stats.kind, stats.name) == ("torch" if kind is TorchLoader else "stoker", "mine")
    assert (stats.num_iterations, stats.num_batches, stats.num_samples) == (2, 24, 192)
    assert sum(worker.num_batches or 0 for worker in stats.workers) == (24 if num_workers else 0)
    assert stats.making_seconds.p50 >= 0.016


@pytest.mark.parametrize(("num_together", "seconds"), [(4, 0.0), (1, 0.02)])
def test_of_what_does_something_with_a_loaders_batches_the_whole_is_reported(num_together: int, seconds: float) -> None:
    """Batches of another size, or a wait that is not for the loader."""
    loader: Any = TorchLoader(Sleeping(0.0005, 96), batch_size=8)
    with watch(Passing(loader, num_together, seconds)) as watched:
        num_batches = sum(1 for _ in watched)
        (stats,) = watched.run().loaders
    assert num_batches == 12 // num_together
    assert (stats.kind, stats.num_batches, stats.num_samples) == ("iterable", num_batches, 96)


def test_workers_that_are_spawned_behind_something_are_watched_too() -> None:
    loader: Any = TorchLoader(
        Sleeping(0.002, 96), batch_size=8, num_workers=1, multiprocessing_context="spawn", worker_init_fn=slow_start
    )
    with watch(Standing(loader)) as watched:
        assert sum(len(batch) for batch in watched) == 96
        (stats,) = watched.run().loaders
    assert loader.worker_init_fn is slow_start
    assert [worker.num_batches for worker in stats.workers] == [12]


def test_workers_that_were_there_before_are_judged_by_what_they_use() -> None:
    loader: Any = TorchLoader(Sleeping(0.004, 320), batch_size=8, num_workers=2, persistent_workers=True)
    assert sum(1 for _ in loader) == 40
    with watch(loader) as watched:
        assert sum(1 for _ in watched) == 40
        diagnosis = watched.diagnosis()
    assert diagnosis.verdict in ("storage-bound", "noisy-neighbour"), diagnosis
    assert "were not observed" in str(diagnosis.evidence) or diagnosis.verdict == "noisy-neighbour"
    del loader


@KINDS
def test_loaders_in_several_threads_are_distinguished(kind: Any) -> None:
    loaders = [kind(Sleeping(0.0001 * factor, 400), batch_size=4) for factor in (4, 16, 32)]
    with ExitStack() as stack:
        watched = [stack.enter_context(watch(loader)) for loader in loaders]
        given: list[list[float]] = [[] for _ in loaders]

        def iterate(number: int) -> None:
            given[number] += [float(value) for batch in watched[number] for value in batch[:, 0]]

        threads = [threading.Thread(target=iterate, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert given == [list(range(400))] * 3
        for seen, least in zip(watched, (0.0016, 0.0064, 0.0128)):
            (stats,) = seen.run().loaders
            assert (stats.num_batches, stats.num_samples) == (100, 400)
            assert stats.laps is not None
            took = np.array(stats.laps["made"]) - np.array(stats.laps["began"])
            assert (took >= least).all()
            assert (np.array(stats.laps["asked"]) <= np.array(stats.laps["made"])).all()


class Pickling(Quick):
    """Sends what torch tells workers about themselves through a pickle, as some do to hand it to their own."""

    def __getitem__(self, position: int) -> torch.Tensor:
        shown: Any = torch.utils.data.get_worker_info()
        content = pickle.dumps(shown)
        again = pickle.loads(content)
        assert b"stoker.lab.watch.hook" not in content
        assert str(type(shown)) == str(type(again)) and isinstance(shown, type(again))
        return torch.tensor([position, again.id, copy.copy(shown).num_workers])


def test_what_workers_are_told_of_themselves_is_what_it_was() -> None:
    loader: Any = TorchLoader(Pickling(32), batch_size=8, num_workers=2)
    with watch(loader) as watched:
        assert torch.cat(list(watched)).tolist() == [[number, number // 8 % 2, 2] for number in range(32)]
        assert watched.run().loaders[0].facts["looked_at_worker"]


@KINDS
@pytest.mark.filterwarnings("ignore:every worker reads the whole")
def test_streams_that_come_several_times_are_compared_epoch_by_epoch(kind: Any) -> None:
    for dataset, share in ((Stream(128), 0.5), (SharedStream(128), 0.0)):
        with watch(kind(dataset, batch_size=8, num_workers=2)) as watched:
            for _ in range(4):
                for _ in watched:
                    pass
            assert watched.run().loaders[0].duplicate_share == pytest.approx(share, abs=0.1)


def test_batches_that_cannot_be_looked_at_are_handed_over_all_the_same() -> None:
    class Odd:
        @property
        def shape(self) -> Any:
            raise RuntimeError("not yet")

    batches = [Odd(), Odd()]
    with watch(batches) as watched:
        assert list(watched) == batches
        assert watched.diagnosis().verdict == "nothing-seen"


def test_two_loaders_are_watched_side_by_side() -> None:
    training: Any = TorchLoader(Quick(64), batch_size=8)
    checking: Any = DataLoader(Quick(32), batch_size=8)
    with watch(training, name="training") as first, watch(checking) as second:
        for _ in first:
            for _ in second:
                pass
        one, other = first.run().loaders[0], second.run().loaders[0]
    assert (one.num_batches, one.kind, one.name) == (8, "torch", "training")
    assert (other.num_batches, other.kind, other.num_iterations) == (32, "stoker", 8)


def test_what_cannot_be_iterated_over_is_refused() -> None:
    with pytest.raises(ArgumentError, match="int cannot be watched"):
        watch(3)  # type: ignore[arg-type]


def test_moments_are_seen_in_between() -> None:
    with watch(TorchLoader(Sleeping(0.005), batch_size=8, num_workers=1)) as watched:
        for number, _ in enumerate(watched):
            if number == 20:
                break
        run = watched.run()
    assert run.moments
    assert run.began is not None
    last = run.moments[-1]
    assert last.private_bytes is not None and last.private_bytes > 1 << 20
    assert last.trainer_pss_bytes is not None
    assert len(last.cores) == os.cpu_count()
    assert 0 < last.at <= run.seconds + 1
    assert run.machine["cores"] >= 1


def test_a_stoker_loader_is_recognized_where_it_loads_samples() -> None:
    """By the files that the probe knows, which may be renamed."""
    seen: set[bool] = set()

    class Looking(Quick):
        def __getitem__(self, position: int) -> torch.Tensor:
            seen.add(probe.is_loading(sys._getframe()))
            return super().__getitem__(position)

    class LookingStream(torch.utils.data.IterableDataset[torch.Tensor]):
        def __iter__(self) -> Iterator[torch.Tensor]:
            seen.add(probe.is_loading(sys._getframe()))
            yield torch.zeros(1)

    for dataset, num_threads in ((Looking(8), 0), (Looking(8), 2), (LookingStream(), 0)):
        loader: Any = DataLoader(dataset, batch_size=4, num_threads=num_threads)
        assert list(loader)
        assert seen == {True}
        seen.clear()
    assert not probe.is_loading(sys._getframe())


# -------------------------------------------------------------------- where our own things fail


def test_a_folder_that_vanishes_ends_the_watching_and_not_the_training(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    folder.mkdir()
    attach(str(folder))
    try:
        folder.rmdir()
        loader: Any = TorchLoader(Quick(64), batch_size=8, num_workers=1)
        assert sum(len(batch) for batch in loader) == 64
        assert recording.current is None
    finally:
        detach()


@KINDS
def test_a_bug_of_ours_does_not_reach_the_training(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("stoker.lab.watch.hook.recording.Recording.add_trainer_row", fail)
    session = WatchSession()
    try:
        loader = kind(Quick(64), batch_size=8, num_workers=1)
        assert sum(len(batch) for batch in loader) == 64
        assert session.stats_of(0) is None
        assert "a bug" in session.failures[0]
    finally:
        session.close()


# -------------------------------------------------------------------- stoker.doctor


def test_a_loader_of_ours_is_judged_by_what_it_has_counted() -> None:
    loader: Any = DataLoader(Sleeping(0.002, 320), batch_size=8)
    for _ in loader:
        time.sleep(0.001)
    before = loader.state_dict()
    diagnosis = doctor(loader)
    assert diagnosis.verdict == "storage-bound"
    assert loader.state_dict() == before
    assert loader.stats().num_batches == 40


def test_whether_it_is_python_is_looked_at_on_a_twin() -> None:
    loader: Any = DataLoader(Counting(512), batch_size=4)
    for number, _ in enumerate(loader):
        if number > 30:
            break
    num_before = loader.stats().num_batches
    diagnosis = doctor(loader, seconds=0.5)
    assert diagnosis.verdict in ("python-bound", "noisy-neighbour"), diagnosis
    assert loader.stats().num_batches == num_before


def test_a_loader_that_was_not_used_is_tried_with_a_step_and_random_numbers_are_kept() -> None:
    loader: Any = TorchLoader(Quick(), batch_size=8, shuffle=True)
    steps = []

    def step(batch: torch.Tensor) -> None:
        steps.append(float(batch[0, 0]) + random.random() + float(torch.rand(())) + float(np.random.rand()))
        time.sleep(0.01)

    states: Any = random.getstate(), torch.get_rng_state(), np.random.get_state()
    diagnosis = doctor(loader, step, seconds=0.5)
    assert diagnosis.verdict in ("compute-bound", "noisy-neighbour"), diagnosis
    assert 10 < len(steps) <= 51
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    assert str(np.random.get_state()) == str(states[2])


def test_without_a_step_the_verdict_is_on_the_loader_by_itself() -> None:
    diagnosis = doctor(TorchLoader(Sleeping(0.002), batch_size=8), seconds=0.4)
    assert diagnosis.verdict == "storage-bound"
    assert "no step was given" in diagnosis.evidence[0]
    assert diagnosis.gain is None


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_of_torchs_is_left_where_it_is(num_workers: int) -> None:
    """In the middle of an epoch, with workers that stay and a generator of its own."""

    def epochs(*, is_treated: bool) -> list[float]:
        generator = torch.Generator().manual_seed(3)
        loader: Any = TorchLoader(
            Quick(64),
            batch_size=8,
            num_workers=num_workers,
            shuffle=True,
            generator=generator,
            persistent_workers=bool(num_workers),
        )
        seen = []
        for number, batch in enumerate(loader):
            seen += batch[:, 0].tolist()
            if number == 2 and is_treated:
                tried: list[Any] = []
                doctor(loader, tried.append, seconds=0.1)
                assert tried
        return seen + [value for batch in loader for value in batch[:, 0].tolist()]

    assert epochs(is_treated=True) == epochs(is_treated=False)


def test_short_loaders_are_tried_over_and_over_and_empty_ones_once() -> None:
    with_epochs = doctor(TorchLoader(Sleeping(0.002, 16), batch_size=8), lambda _: None, seconds=0.4)
    assert with_epochs.verdict == "storage-bound"
    assert doctor([], seconds=0.2).verdict == "nothing-seen"
    assert doctor(iter([torch.zeros(1)]), seconds=0.2).verdict == "nothing-seen"


def test_a_loader_that_is_watched_already_is_asked() -> None:
    with watch(TorchLoader(Sleeping(0.002, 160), batch_size=8)) as watched:
        for _ in watched:
            pass
        assert doctor(watched).verdict == "storage-bound"
    with pytest.raises(ArgumentError, match="seconds must be above 0, got 0"):
        doctor([1], seconds=0)


def test_diagnoses_can_be_printed() -> None:
    shown = str(doctor(TorchLoader(Sleeping(0.002), batch_size=8), seconds=0.3))
    assert shown.startswith("storage-bound: ")
    assert "evidence\n" in shown and "what to do\n" in shown


def test_a_step_that_is_no_function_is_refused() -> None:
    with pytest.raises(ArgumentError, match="step must be callable, got 5"):
        stoker.doctor([1, 2, 3], step=5)  # type: ignore[arg-type]


def test_what_was_seen_is_kept_when_it_is_closed() -> None:
    loader: Any = TorchLoader(Sleeping(0.004, 160), batch_size=8)
    with watch(loader) as watched:
        for _ in watched:
            pass
    assert watched.run().loaders[0].num_batches == 20
    assert watched.diagnosis().verdict in ("storage-bound", "noisy-neighbour")
    watched.close()
    assert watched.run().loaders[0].num_batches == 20
    for _ in watched:  # and then it is watched again
        break
    assert watched.run().loaders[0].num_batches == 1
    watched.close()


def test_an_empty_loader_is_told_so() -> None:
    nothing: Any = []
    loader: Any = TorchLoader(nothing, batch_size=8)
    diagnosis = doctor(loader, seconds=0.2)
    assert diagnosis.verdict == "nothing-seen"
    assert diagnosis.says == "the loader delivered no batch"
    assert "not empty" in diagnosis.advice[0]
