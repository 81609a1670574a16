"""A training step timed three ways: stalls made on purpose are found again, whoever's loader it is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import stoker
from stoker.errors import ArgumentError
from stoker.lab.trial import train_bench
from stoker.lab.trial.batch_contents import with_new_containers
from stoker.lab.trial.ready_batches import cached_loader, on_device, take_batches
from stoker.lab.trial.train_bench import (
    CudaTicks,
    Iterated,
    Resident,
    StepTimer,
    Ticks,
    WaitingTicks,
    bench_train,
    record_run,
)
from stoker.lab.trial.train_record import CACHED, COPY, DATA, FETCH, PREPARATION, REAL, RESIDENT, TrainBench
from stoker.lab.trial.work_time import WorkTime

pytestmark = pytest.mark.timed

BATCH_SIZE, STEP_SECONDS = 4, 0.002


class Costly:
    """Samples that take time to load: each batch asleep, as if waiting for a disk, each sample at work on the CPU."""

    def __init__(self, *, sleep: float = 0.0, work: float = 0.0, num_samples: int = 4000) -> None:
        self.sleep, self.work, self.num_samples = sleep, work, num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitems__(self, positions: list[int]) -> list[dict[str, Any]]:
        time.sleep(self.sleep)  # once for a batch: on a busy machine, who wakes up often waits often
        return [self[position] for position in positions]

    def __getitem__(self, position: int) -> dict[str, Any]:
        began = time.thread_time()
        while time.thread_time() - began < self.work:
            pass
        return {"x": torch.full((100,), float(position)), "y": position}


def step(batch: Any) -> None:
    time.sleep(STEP_SECONDS)


def parts_of(found: TrainBench) -> dict[str, float]:
    return {part.name: part.seconds for part in found.parts()}


LOADERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "ours, inline": (stoker.DataLoader, {}),
    "ours, workers": (stoker.DataLoader, {"num_workers": 1}),
    "ours, threads": (stoker.DataLoader, {"num_threads": 1}),
    "torch, inline": (TorchDataLoader, {}),
    "torch, workers": (TorchDataLoader, {"num_workers": 1}),
}


@pytest.mark.parametrize("name", LOADERS)
def test_storage_that_is_waited_for_is_a_fetch_stall(name: str) -> None:
    kind, options = LOADERS[name]
    loader = kind(Costly(sleep=0.04), BATCH_SIZE, **options)
    found = bench_train(step, loader, seconds=0.2, num_rounds=1)
    parts = parts_of(found)
    # 40 ms for a batch; beside it runs the step, unless the trainer makes batches itself
    expected = 0.04 if "inline" in name else 0.04 - STEP_SECONDS
    assert 0.5 * expected < parts[FETCH] < 3 * expected  # on a machine that has other things to do
    assert parts[PREPARATION] < parts[FETCH]
    assert [way.name for way in found.ways] == [RESIDENT, CACHED, REAL]
    assert found.split_by.startswith("by ")


@pytest.mark.parametrize("name", LOADERS)
def test_work_on_the_cpu_is_a_preparation_stall(name: str) -> None:
    kind, options = LOADERS[name]
    loader = kind(Costly(work=0.005), BATCH_SIZE, **options)
    found = bench_train(step, loader, seconds=0.2, num_rounds=1)
    parts = parts_of(found)
    assert parts[PREPARATION] > 0.012  # 20 ms of work, less a step, and more where cores are shared
    assert parts[FETCH] < 0.5 * parts[PREPARATION]


def test_a_loader_that_keeps_up_has_next_to_no_stall() -> None:
    def slow(batch: Any) -> None:
        time.sleep(0.03)

    loader = stoker.DataLoader(Costly(sleep=0.001), BATCH_SIZE, num_workers=1)
    found = bench_train(slow, loader, seconds=0.3, num_rounds=2)
    parts = parts_of(found)
    assert sum(parts.get(name, 0.0) for name in (DATA, PREPARATION, FETCH)) < 0.01
    assert found.stall_share < 0.35


@pytest.mark.parametrize(
    "wide", [{"to": torch.float32}, {"normalize": ((0.5,), (0.5,))}], ids=lambda wide: next(iter(wide))
)
def test_what_is_widened_on_the_device_is_so_for_every_way(wide: dict[str, Any]) -> None:
    seen: set[torch.dtype] = set()
    loader = stoker.DataLoader([np.full((1, 8, 8), 255, np.uint8)] * 64, BATCH_SIZE, **wide)
    found = bench_train(lambda batch: seen.add(batch.dtype), loader, seconds=0.02, num_rounds=1, device="cpu")
    assert [way.name for way in found.ways] == [RESIDENT, CACHED, REAL]
    assert seen == {torch.float32}


def test_a_step_that_fails_on_resident_batches_is_told_where_they_lie() -> None:
    class Moved(torch.Tensor):
        pass

    def step(batch: torch.Tensor) -> None:
        if type(batch) is Moved:
            raise RuntimeError("Expected all tensors to be on the same device")

    real = train_bench.Resident.take
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_bench.Resident, "take", lambda self: real(self).as_subclass(Moved))
        with pytest.raises(RuntimeError, match="same device") as caught:
            bench_train(step, stoker.DataLoader([torch.ones(3)] * 64, BATCH_SIZE), seconds=0.02, num_rounds=1)
    assert "say so: --device cpu" in caught.value.__notes__[-1]


def test_steps_on_a_device_without_a_clock_of_its_own_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: waited.append(1))
    ticks = WaitingTicks()
    ticks.start()
    for _ in range(3):
        ticks.tick()
    assert len(waited) == len(ticks.periods()) == 3


def test_any_iterable_is_measured_though_its_stall_is_not_split() -> None:
    class Batches:
        def __iter__(self) -> Iterator[int]:
            for number in range(200):
                time.sleep(0.01)
                yield number

    found = bench_train(step, Batches(), seconds=0.2, num_rounds=2)
    assert parts_of(found)[DATA] == pytest.approx(0.01, rel=0.5)
    assert found.kind == "iterable"
    assert "unknown what loads the batches" in found.split_by
    assert any("cached batches cannot be sent" in note for note in found.notes)


def test_epochs_that_are_short_are_begun_again_and_said_to_count() -> None:
    loader = stoker.DataLoader(Costly(sleep=0.001, num_samples=2 * BATCH_SIZE), BATCH_SIZE)
    found = bench_train(step, loader, seconds=0.05, num_rounds=1)
    assert found.ways[-1].num_steps >= 8
    assert any("epochs are short" in note for note in found.notes)


def test_a_generator_that_runs_out_is_told() -> None:
    with pytest.raises(ArgumentError, match="can be iterated only once"):
        bench_train(step, (number for number in range(30)), seconds=0.2, num_rounds=2)


def test_an_empty_loader_and_a_step_that_is_none_are_refused() -> None:
    with pytest.raises(ArgumentError, match="the loader returned no batch"):
        bench_train(step, [], num_rounds=1)
    with pytest.raises(ArgumentError, match="the step is int, which cannot be called"):
        bench_train(3, [1], num_rounds=1)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="num_rounds and seconds must be positive"):
        bench_train(step, [1], num_rounds=0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA here")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ArgumentError, match="device 'cuda': CUDA is not available"):
        bench_train(step, [1], num_rounds=1, device="cuda")


def test_an_error_of_the_step_is_raised_as_it_is_and_nothing_stays() -> None:
    def broken(batch: Any) -> None:
        raise ZeroDivisionError("in the step")

    with pytest.raises(ZeroDivisionError, match="in the step"):
        bench_train(broken, stoker.DataLoader(Costly(), BATCH_SIZE, num_workers=1), num_rounds=1)


def test_arguments_that_are_auto_are_chosen_before_others_are_made_like_them() -> None:
    loader = stoker.DataLoader(Costly(sleep=0.02), BATCH_SIZE, num_workers="auto")
    found = bench_train(step, loader, seconds=0.3, num_rounds=1)
    assert any('arguments are "auto"' in note for note in found.notes)
    assert found.stall_share > 0


def test_rounds_are_announced() -> None:
    told: list[tuple[int, int, str]] = []
    loader = stoker.DataLoader(Costly(), BATCH_SIZE)
    bench_train(step, loader, seconds=0.05, num_rounds=2, watch=lambda *what: told.append(what))
    assert [(done, total) for done, total, _ in told] == [(number, 7) for number in range(7)]


def test_a_run_is_recorded_for_the_report() -> None:
    loader: Any = TorchDataLoader(Costly(sleep=0.001), BATCH_SIZE, num_workers=1)  # type: ignore[arg-type]
    run = record_run(step, loader, seconds=0.5, title="mine")
    assert run is not None
    assert run.title == "mine"
    assert run.loaders[0].num_batches > 5
    assert run.loaders[0].kind == "torch"
    empty: Any = TorchDataLoader([], 4)  # type: ignore[arg-type]
    assert record_run(step, empty, seconds=0.1) is None


# ---------------------------------------------------------------- cached batches


class Pair(NamedTuple):
    x: torch.Tensor
    names: list[str]


@pytest.mark.parametrize("name", LOADERS)
def test_a_cached_loader_hands_out_the_same_batches_in_turn(name: str) -> None:
    kind, options = LOADERS[name]
    batches = [Pair(torch.arange(5) + number, ["a", "b"]) for number in range(3)]
    cached = cached_loader(kind(Costly(), BATCH_SIZE, **options), batches)
    assert cached is not None
    iterator = iter(cached)
    found = [next(iterator) for _ in range(7)]
    for number, batch in enumerate(found):
        assert type(batch) is Pair
        assert batch.x.tolist() == batches[number % 3].x.tolist()
        assert batch.names == ["a", "b"]
    if "worker" in name:
        assert len({batch.x.data_ptr() for batch in found}) == 7  # each in memory of its own, as in training
    if hasattr(iterator, "close"):
        iterator.close()


def test_a_cached_loader_has_the_arguments_of_the_real_one() -> None:
    real = stoker.DataLoader(
        Costly(), BATCH_SIZE, num_workers=2, num_threads=3, prefetch_factor=5, persistent_workers=True, in_order=False
    )
    cached = cached_loader(real, [1])
    assert cached is not None
    names = ("num_workers", "num_threads", "prefetch_factor", "persistent_workers", "in_order")
    assert [getattr(cached, name) for name in names] == [2, 3, 5, True, False]
    theirs: Any = TorchDataLoader(Costly(), BATCH_SIZE, num_workers=2, prefetch_factor=5)  # type: ignore[arg-type]
    cached = cached_loader(theirs, [1])
    assert type(cached) is TorchDataLoader
    assert (cached.num_workers, cached.prefetch_factor) == (2, 5)
    assert cached_loader([1, 2], [1]) is None


def test_batches_are_cached_as_workers_make_them_and_widened_on_the_way() -> None:
    class Pictures:
        def __len__(self) -> int:
            return 8

        def __getitem__(self, position: int) -> torch.Tensor:
            return torch.full((3, 2, 2), 255, dtype=torch.uint8)

    loader = stoker.DataLoader(Pictures(), 4, normalize=((0.5,) * 3, (0.5,) * 3))
    batches = take_batches(loader)
    assert [batch.dtype for batch in batches] == [torch.uint8] * 2
    cached = iter(cached_loader(loader, batches))  # type: ignore[arg-type]
    batch = next(cached)
    assert batch.dtype == torch.float32
    assert batch.unique().tolist() == pytest.approx([1.0])
    cached.close()
    [first, _] = loader  # the loader itself is as it was
    assert first.dtype == torch.float32


def test_few_batches_are_taken_if_they_are_large() -> None:
    large = np.zeros(100 << 20, np.uint8)
    assert len(take_batches([large] * 9)) == 2
    assert len(take_batches([1] * 9)) == 8
    numbers = iter(range(20))
    assert take_batches(numbers) == list(range(8))
    assert next(numbers) == 8  # one that goes on is not closed


def test_what_a_step_takes_out_of_a_batch_is_there_the_next_time() -> None:
    batch = {"x": torch.zeros(2), "labels": [1, 2]}
    first = with_new_containers(batch)
    first.pop("x")
    first["labels"].clear()
    assert batch["labels"] == [1, 2]
    assert with_new_containers(batch)["x"] is batch["x"]


def test_batches_are_moved_with_all_that_can_move_itself() -> None:
    class Moving:
        def to(self, device: torch.device) -> tuple[str, str]:
            return "moved", device.type

    moved = on_device({"x": torch.zeros(2), "m": Moving(), "s": "text"}, torch.device("meta"))
    assert moved["x"].device.type == "meta"
    assert moved["m"] == ("moved", "meta")
    assert moved["s"] == "text"


# ---------------------------------------------------------------- clocks and effort


def test_a_window_counts_the_middle_of_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    class Epochs:
        """Epochs of ten batches, of which the first takes long."""

        num_workers, prefetch_factor = 0, None

        def __iter__(self) -> Iterator[int]:
            log.append("begin")
            time.sleep(0.1)
            yield from range(10)

    monkeypatch.setattr(train_bench, "num_ahead_of", lambda arguments: 1)
    source = Iterated(Epochs())
    assert source.num_warm == 4
    window = StepTimer(source, lambda _: log.append("step"), clock=Ticks()).run(15)
    assert window.num_steps == len(window.periods) == 15
    assert log.count("begin") == 3  # six of each epoch are timed
    assert window.seconds < 0.1
    assert not window.is_short


def test_resident_batches_come_in_turn_and_in_new_containers() -> None:
    source = Resident([[1], [2]])
    assert [source.take() for _ in range(4)] == [[2], [1], [2], [1]]
    assert source.take() is not source.take()


@pytest.mark.parametrize(
    ("effort", "share"),
    [
        (WorkTime(1.0, 0.2, 0.1), 0.7),
        (WorkTime(1.0, 1.3, 0.0), 0.0),
        (WorkTime(2.0, 0.0, 0.0), 1.0),
        (WorkTime(0.0005, 0.0, 0.0), None),
    ],
)
def test_blocked_is_who_is_busy_and_neither_on_a_core_nor_ready(effort: WorkTime, share: float | None) -> None:
    assert effort.blocked_share == (None if share is None else pytest.approx(share))


def test_efforts_add_up_and_differ() -> None:
    assert WorkTime(1, 2, 3) + WorkTime(10, 20, 30) == WorkTime(11, 22, 33)
    assert WorkTime(11, 22, 33) - WorkTime(10, 20, 30) == WorkTime(1, 2, 3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_steps_on_a_gpu_are_timed_by_its_own_clock() -> None:
    weights = torch.randn(4096, 4096, device="cuda")

    def compute(batch: Any) -> None:
        for _ in range(20):
            _ = weights @ weights  # begun, and not waited for

    device = torch.device("cuda", torch.cuda.current_device())
    window = StepTimer(Resident([1]), compute, clock=CudaTicks(device)).run(20)
    assert window.seconds == pytest.approx(sum(window.periods), rel=0.2)
    began = time.perf_counter()
    compute(1)
    begun = time.perf_counter() - began
    torch.cuda.synchronize()
    assert min(window.periods) > begun
    loader = stoker.DataLoader(Costly(sleep=0.03), BATCH_SIZE, num_workers=1, device="cuda")
    found = bench_train(compute, loader, seconds=0.3, num_rounds=2)
    assert found.device == str(device)
    assert not found.counts_slowing
    assert parts_of(found)[COPY] >= 0
