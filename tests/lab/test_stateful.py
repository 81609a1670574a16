"""torchdata's StatefulDataLoader is watched as torch's is: its batches, its order and its state are what they were."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.stateful_dataloader import _StatefulMultiProcessingDataLoaderIter

from stoker.lab.diagnose.doctor import doctor
from stoker.lab.watch.hook import install
from stoker.lab.watch.watch import watch
from tests.lab.pathologies import Counting, Quick, SharedStream, Sleeping
from tests.lab.watching import first_in_line, found, watched

__all__ = ["first_in_line"]

pytestmark = [
    pytest.mark.timed,
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata calls it, torch has none
]
WORKERS = pytest.mark.parametrize(
    "setting",
    [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}],
    ids=["inline", "workers", "workers that stay"],
)


@pytest.fixture(autouse=True)
def everything_is_as_it_was() -> Iterator[None]:
    """Fail a test after which torchdata's classes are not what they were before."""
    before = _parts()
    yield
    gc.collect()
    assert _parts() == before


def _parts() -> list[Any]:
    kind, iterator = StatefulDataLoader, _StatefulMultiProcessingDataLoaderIter
    return [kind.__init__, kind.__iter__, iterator._process_data, iterator.__next__]


def plain(state: Any) -> Any:
    """Return a state in which tensors are lists, so that two can be compared."""
    if isinstance(state, dict):
        return {name: plain(value) for name, value in state.items()}
    return state.tolist() if isinstance(state, torch.Tensor) else state


def trained(setting: dict[str, Any], *, is_watched: bool) -> tuple[list[list[float]], list[Any]]:
    """Return what a training gets that is stopped in its second epoch and goes on in another loader, and its states."""

    def make() -> Any:
        return StatefulDataLoader(Quick(80), batch_size=8, shuffle=True, **setting)

    torch.manual_seed(3)
    seen, states = [], []
    loader = make()
    given = watch(loader) if is_watched else loader
    for epoch in range(2):
        for number, batch in enumerate(given):
            seen.append(batch[:, 0].tolist())
            states.append(plain(given.state_dict()))
            if epoch and number == 3:
                break
    stopped = given.state_dict()
    again = make()
    again.load_state_dict(stopped)
    resumed = watch(again) if is_watched else again
    for _ in range(2):
        seen += [batch[:, 0].tolist() for batch in resumed]
    states += [plain(again.state_dict()), torch.get_rng_state().tolist()]
    if is_watched:
        assert [stats.num_batches for stats in given.run().loaders + resumed.run().loaders] == [14, 16]
        given.close()
        resumed.close()
    return seen, states


@WORKERS
def test_batches_order_state_and_resuming_are_the_loaders_own(setting: dict[str, Any]) -> None:
    assert trained(setting, is_watched=True) == trained(setting, is_watched=False)


@pytest.mark.parametrize("start_method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_each_batch_is_shown_with_who_made_it_and_when(start_method: str) -> None:
    loader: Any = StatefulDataLoader(
        Sleeping(0.002, 96), batch_size=8, num_workers=2, multiprocessing_context=start_method
    )
    with watch(loader) as seen:
        assert sum(len(batch) for batch in seen) == 96
        (stats,) = seen.run().loaders
    assert loader.worker_init_fn is None
    assert (stats.kind, stats.num_batches, stats.num_samples) == ("torch", 12, 96)
    check_makers(stats, num_batches=12)


def check_makers(stats: Any, *, num_batches: int) -> None:
    """Fail unless it is known of every batch how it was made: two workers slept for 16 ms each time."""
    assert sorted(worker.role for worker in stats.workers) == ["worker 0", "worker 1"]
    assert sum(worker.num_batches for worker in stats.workers) == num_batches
    laps = {name: np.array(column) for name, column in stats.laps.items()}
    assert (laps["made"] - laps["began"] >= 0.015).all()
    for earlier, later in (("began", "made"), ("made", "sent"), ("sent", "handed"), ("asked", "handed")):
        assert (laps[earlier] <= laps[later]).all(), (earlier, later)


class SleepingStream(SharedStream):
    def __iter__(self) -> Iterator[torch.Tensor]:
        for sample in super().__iter__():
            time.sleep(0.002)
            yield sample


@pytest.mark.parametrize("setting", [{}, {"persistent_workers": True}], ids=str)
@pytest.mark.parametrize("kind", [Sleeping, SleepingStream])
def test_makers_are_known_after_a_state_was_loaded(kind: Any, setting: dict[str, Any]) -> None:
    """A stream is run through up to where it was; what came meanwhile was made, and handed to nobody."""
    dataset = Sleeping(0.002, 128) if kind is Sleeping else SleepingStream(128)

    def make(**more: Any) -> Any:
        return StatefulDataLoader(dataset, batch_size=8, num_workers=2, **more)

    before = make()
    iterator = iter(before)
    for _ in range(5):
        next(iterator)
    state = before.state_dict()
    del iterator, before
    loader = make(**setting)
    loader.load_state_dict(state)
    with watch(loader) as seen:
        assert [sum(1 for _ in seen) for _ in range(2)] == [11, 16]
        (stats,) = seen.run().loaders
    assert (stats.num_iterations, stats.num_batches) == (2, 27)
    check_makers(stats, num_batches=27)
    assert stats.duplicate_share in (None, 0.0)
    del loader


def test_makers_are_known_where_batches_come_out_of_order() -> None:
    for dataset in (Sleeping(0.002, 128), SleepingStream(128)):
        loader: Any = StatefulDataLoader(dataset, batch_size=8, num_workers=2, in_order=False)
        with watch(loader) as seen:
            assert sum(1 for _ in seen) == 16
            (stats,) = seen.run().loaders
        check_makers(stats, num_batches=16)


def test_workers_that_a_state_was_asked_of_first_are_not_asked_what_they_did() -> None:
    """They are there before anybody watches, in the first epoch."""
    loader: Any = StatefulDataLoader(Sleeping(0.002, 160), batch_size=8, num_workers=2)
    loader.state_dict()
    with watch(loader) as seen:
        assert [sum(1 for _ in seen) for _ in range(2)] == [20, 20]
        (stats,) = seen.run().loaders
    assert stats.num_batches == 40
    assert sum(worker.num_batches or 0 for worker in stats.workers) == 20


@pytest.mark.usefixtures("first_in_line")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_verdicts_are_those_of_torchs_loader(num_workers: int) -> None:
    slow: Any = StatefulDataLoader(Sleeping(0.004), batch_size=8, num_workers=num_workers)
    diagnosis, _ = found(lambda: watched(slow), "storage-bound")
    assert "num_workers=" in diagnosis.advice[0]
    busy: Any = StatefulDataLoader(Counting(), batch_size=8, num_workers=min(1, num_workers))
    found(lambda: watched(busy), "python-bound")
    healthy: Any = StatefulDataLoader(Quick(), batch_size=16, num_workers=num_workers, shuffle=True)
    diagnosis, _ = found(lambda: watched(healthy, step=0.02), "compute-bound")
    assert diagnosis.findings == []


@WORKERS
def test_a_doctor_leaves_the_loader_where_it_is(setting: dict[str, Any]) -> None:
    def run(*, is_treated: bool) -> tuple[list[list[float]], Any]:
        torch.manual_seed(3)
        loader: Any = StatefulDataLoader(Quick(80), batch_size=8, shuffle=True, **setting)

        def treat() -> None:
            if is_treated:
                tried: list[Any] = []
                doctor(loader, tried.append, seconds=0.1)
                assert tried

        treat()
        seen = []
        for number, batch in enumerate(loader):
            seen.append(batch[:, 0].tolist())
            if number == 2:
                treat()
            if number == 5:
                break
        state = loader.state_dict()
        loader.load_state_dict(state)
        treat()
        seen += [batch[:, 0].tolist() for batch in loader]
        return seen, [plain(state), torch.get_rng_state().tolist()]

    treated = run(is_treated=True)
    assert treated == run(is_treated=False)
    assert len(treated[0]) == 10


def test_it_is_watched_too_where_it_is_imported_later(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "torchdata.stateful_dataloader.stateful_dataloader"
    with watch([1, 2]) as first:
        with monkeypatch.context() as patch:
            patch.delitem(sys.modules, name)
            list(first)
            assert "torchdata" not in install._installed
        with watch(StatefulDataLoader(Sleeping(0.001, 32), batch_size=8)) as seen:
            assert sum(1 for _ in seen) == 4
            (stats,) = seen.run().loaders
    assert (stats.kind, stats.num_batches) == ("torch", 4)
