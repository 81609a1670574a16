"""Driving a loader: what is counted, and what is not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from stoker.errors import ArgumentError
from stoker.lab.trial.drive import LoaderDrive, Pace, arguments_of, batch_size_of, kind_of, num_ahead_of, quantiles
from tests.lab import plain_loaders, torch_loaders

pytestmark = pytest.mark.timed


class Clock:
    """Time that passes only when somebody says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("time.perf_counter", clock.perf_counter)
    return clock


class Timed:
    """Batches of `batch_size` that take as long as a function of their number says."""

    def __init__(self, clock: Clock, seconds: Callable[[int], float], num_batches: int, **arguments: Any) -> None:
        self._clock, self._seconds, self._num_batches = clock, seconds, num_batches
        self.batch_size = 4
        vars(self).update(arguments)

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(self._num_batches):
            self._clock.sleep(self._seconds(number))
            yield [number] * 4


def test_time_and_samples_are_those_of_the_middle_of_epochs(clock: Clock) -> None:
    """An epoch begins slowly, then comes a burst of what was prefetched; neither is counted."""
    num_ahead = num_ahead_of({"num_workers": 2, "prefetch_factor": 2})
    seconds = [1.0] + [0.0] * (num_ahead - 1) + [0.01] * 90
    loader = Timed(clock, seconds.__getitem__, len(seconds), num_workers=2, prefetch_factor=2)
    driven = LoaderDrive(lambda: loader)
    assert driven.first() == pytest.approx(1.0)
    found = driven.measure(Pace(seconds=2.0), cpu_seconds=lambda: 0.0)
    assert found["seconds"] / found["num_batches"] == pytest.approx(0.01)
    assert found["num_samples"] == 4 * found["num_batches"]
    assert found["seconds"] >= 2.0
    assert found["wait_seconds"]["most"] == pytest.approx(0.01)
    assert found["epoch_start_seconds"] == [pytest.approx(1.0)] * 2
    assert not found["counts_epoch_starts"]


def test_of_epochs_without_a_middle_all_is_counted(clock: Clock) -> None:
    seconds = [1.0, 0.0, 0.0, 0.0]
    loader = Timed(clock, seconds.__getitem__, 4, num_workers=2, prefetch_factor=2)
    driven = LoaderDrive(lambda: loader)
    driven.first()
    found = driven.measure(Pace(seconds=5.0), cpu_seconds=lambda: 0.0)
    assert found["counts_epoch_starts"]
    assert found["num_batches"] == 20
    assert found["seconds"] == pytest.approx(5.0), "five whole epochs, with the second that each begins with"


def test_an_epoch_that_turns_out_to_be_short_is_counted_again_as_a_whole(clock: Clock) -> None:
    num_ahead = num_ahead_of({"num_workers": 1, "prefetch_factor": 2})
    loader = Timed(clock, lambda number: 0.0 if number else 1.0, num_ahead + 2, num_workers=1, prefetch_factor=2)
    driven = LoaderDrive(lambda: loader)
    driven.first()
    found = driven.measure(Pace(seconds=3.0), cpu_seconds=lambda: 0.0)
    assert found["counts_epoch_starts"]
    assert found["seconds"] / found["num_batches"] == pytest.approx(1 / (num_ahead + 2))


def test_the_step_is_part_of_the_time_and_told_apart_from_the_wait(clock: Clock) -> None:
    seen: list[Any] = []

    def step(batch: Any) -> None:
        seen.append(batch)
        clock.sleep(0.03)

    driven = LoaderDrive(lambda: Timed(clock, lambda _: 0.01, 10_000), step)
    driven.first()
    found = driven.measure(Pace(seconds=1.0), cpu_seconds=lambda: 0.0)
    assert found["seconds"] / found["num_batches"] == pytest.approx(0.04)
    assert found["wait_seconds"]["mean"] == pytest.approx(0.01)
    assert found["step_seconds"]["mean"] == pytest.approx(0.03)
    assert [batch[0] for batch in seen] == list(range(len(seen))), "every batch gets its step, also those not counted"


def test_batches_are_counted_by_number_if_asked(clock: Clock) -> None:
    driven = LoaderDrive(lambda: Timed(clock, lambda _: 0.01, 10_000))
    driven.first()
    assert driven.measure(Pace(seconds=0.01, num_batches=37), cpu_seconds=lambda: 0.0)["num_batches"] == 37


def test_a_slow_loader_is_not_waited_for_longer_than_for_two_batches(clock: Clock) -> None:
    driven = LoaderDrive(lambda: Timed(clock, lambda _: 50.0, 10_000))
    driven.first()
    found = driven.measure(Pace(seconds=1.0), cpu_seconds=lambda: 0.0)
    assert found["num_batches"] == 2
    assert clock.now - 100.0 == pytest.approx(4 * 50.0), "the first one, one to warm up, two to count"


def test_cpu_time_is_shared_out_over_all_samples_that_came_meanwhile(clock: Clock) -> None:
    driven = LoaderDrive(lambda: Timed(clock, lambda _: 0.01, 20))
    driven.first()
    spent = iter([5.0, 9.0])
    found = driven.measure(Pace(seconds=1.0), cpu_seconds=lambda: next(spent))
    assert found["cpu_seconds"] == 4.0
    assert found["num_cpu_samples"] > found["num_samples"], "those at the start of epochs cost as much as others"


def test_what_can_be_iterated_only_once_is_made_again() -> None:
    made = []

    def make() -> Iterator[list[int]]:
        made.append(1)
        return plain_loaders.once()

    driven = LoaderDrive(make)
    driven.first()
    found = driven.measure(Pace(seconds=0.2), cpu_seconds=lambda: 0.0)
    assert len(made) > 1
    assert found["num_batches"] > 40


def test_a_loader_that_gives_nothing_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="the loader returned no batch\nhint: check that its dataset is not"):
        LoaderDrive(plain_loaders.empty).first()

    class Once:
        is_gone = False

        def __iter__(self) -> Iterator[int]:
            if not self.is_gone:
                yield from range(5)
            self.is_gone = True

    driven = LoaderDrive(Once)
    driven.first()
    with pytest.raises(ArgumentError, match="no batch when it was iterated again"):
        driven.measure(Pace(seconds=1.0))


def test_what_a_device_was_only_told_to_do_counts_when_it_is_done(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step returns at once, and leaves the device 30 ms of work."""
    outstanding = 0.0

    def step(batch: Any) -> None:
        nonlocal outstanding
        outstanding += 0.03

    def synchronize() -> None:
        nonlocal outstanding
        clock.sleep(outstanding)
        outstanding = 0.0

    monkeypatch.setattr("stoker.lab.trial.drive._synchronize", synchronize)
    driven = LoaderDrive(lambda: Timed(clock, lambda _: 0.0, 10_000), step)
    driven.first()
    found = driven.measure(Pace(num_batches=50), cpu_seconds=lambda: 0.0)
    assert found["seconds"] / found["num_batches"] == pytest.approx(0.03)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_kernels_that_are_only_launched_are_waited_for() -> None:
    large = torch.randn(6000, 6000, device="cuda")

    def step(batch: Any) -> None:
        nonlocal large
        large = (large @ large).tanh()

    driven = LoaderDrive(lambda: [[0]] * 1000, step)
    driven.first()
    step([0])
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(10):
        step([0])
    torch.cuda.synchronize()
    alone = (time.perf_counter() - begin) / 10
    found = driven.measure(Pace(num_batches=20), cpu_seconds=lambda: 0.0)
    assert found["seconds"] / found["num_batches"] > 0.5 * alone


def test_quantiles_are_those_of_the_durations() -> None:
    found = quantiles([number / 1000 for number in range(1000)])
    assert (found["num"], found["p50"], found["p90"], found["p99"], found["most"]) == (1000, 0.5, 0.9, 0.99, 0.999)
    assert found["mean"] == pytest.approx(0.4995)
    assert found["deviation"] == pytest.approx((999_999 / 12) ** 0.5 / 1000)
    assert quantiles([]) == {"num": 0}


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_a_loader_tells_whose_it_is_and_what_it_was_given() -> None:
    assert kind_of(torch_loaders.unmodified()) == "torch"
    assert kind_of(torch_loaders.ours()) == "stoker"
    assert kind_of([1]) == "iterable"
    found = arguments_of(torch_loaders.unmodified())
    assert found["num_workers"] == 3
    assert found["prefetch_factor"] == 4
    assert batch_size_of(torch_loaders.unmodified()) == 4
    assert batch_size_of([1]) is None
