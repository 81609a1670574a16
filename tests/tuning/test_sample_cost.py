"""What is found out at the start, and chosen by it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from stoker.tuning import sample_cost as measurement
from stoker.tuning.parallelism import AUTO, Parallelism, SearchSpace, search_space_for
from stoker.tuning.sample_cost import SampleCost, first_choice, measure_samples


class Probe:
    """Units that do one thing."""

    def __init__(self, act: Callable[[], None], *, num_units: int = 24, units_of_batch: int = 8) -> None:
        self._act = act
        self.num_units, self.units_of_batch = num_units, units_of_batch
        self.done: list[int] = []
        self.threads: set[str] = set()

    def do(self, unit: int) -> None:
        self._act()
        self.done.append(unit)
        self.threads.add(threading.current_thread().name)

    def finish_seconds(self) -> float:
        return 0.25


@pytest.mark.timed
def test_waiting_scales_on_two_threads() -> None:
    probe = Probe(lambda: time.sleep(0.015))
    found = max((measure_samples(probe) for _ in range(5)), key=lambda found: found.speedup)  # the machine may be busy
    assert found.speedup > 1.3
    assert 0.01 < found.unit_seconds < 0.15
    assert found.unit_cpu_seconds < 0.5 * found.unit_seconds
    assert found.batch_seconds == pytest.approx(8 * found.unit_seconds + 0.25)
    assert "stoker-probe" in probe.threads


@pytest.mark.timed
def test_what_holds_a_lock_does_not() -> None:
    lock = threading.Lock()

    def locked() -> None:
        with lock:
            time.sleep(0.008)

    assert min(measure_samples(Probe(locked)).speedup for _ in range(4)) < 1.4


def test_no_unit_is_done_twice_when_it_takes_its_time() -> None:
    probe = Probe(lambda: time.sleep(0.002), num_units=40)
    measure_samples(probe)
    assert len(probe.done) == len(set(probe.done))


def test_quick_units_are_done_again_until_there_is_something_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that nothing but the units moves: how many are done does not depend on who else wants the cores."""
    now = 0.0

    def quick() -> None:
        nonlocal now
        now += 1e-5

    clock = SimpleNamespace(perf_counter=lambda: now, thread_time=lambda: now)
    monkeypatch.setattr(measurement, "time", clock)
    monkeypatch.setattr(measurement, "thread_delay_seconds", lambda: 0.0)
    probe = Probe(quick, num_units=24)
    assert measure_samples(probe).unit_seconds == pytest.approx(1e-5)
    # two to warm up, and two looks of as many as TINY_SECONDS has room for
    assert len(probe.done) == pytest.approx(2 + 2 * measurement.TINY_SECONDS / 1e-5, rel=0.05)


@pytest.mark.timed
def test_one_unit_that_was_held_up_does_not_count() -> None:
    def found() -> SampleCost:
        lasts = iter([0.0] * 5 + [0.1] + [0.0] * 100_000)
        return measure_samples(Probe(lambda: time.sleep(next(lasts)), num_units=24))

    assert min(found().unit_seconds for _ in range(4)) < 0.01


@pytest.mark.timed
def test_what_was_read_first_and_is_slow_for_that_makes_threads_look_no_better() -> None:
    read: set[int] = set()

    class FromDisk(Probe):
        def do(self, unit: int) -> None:
            time.sleep(0.0 if unit in read else 0.004 if len(read) < 10 else 0.0002)
            read.add(unit)
            self.done.append(unit)

    found = measure_samples(FromDisk(lambda: None, num_units=24))
    assert found.unit_seconds > 0.002
    assert found.speedup < 2.5


@pytest.mark.timed
@pytest.mark.parametrize("num_units", [1, 2, 3, 4, 5, 6])
def test_slow_units_are_few(num_units: int) -> None:
    probe = Probe(lambda: time.sleep(0.12), num_units=num_units, units_of_batch=1)
    began = time.perf_counter()
    found = measure_samples(probe)
    assert len(probe.done) <= 5
    assert found.unit_seconds > 0.06
    assert time.perf_counter() - began >= 0.12


@pytest.mark.parametrize("fails_at", [0, 3, 20])
def test_an_error_ends_it_and_its_thread(fails_at: int) -> None:
    probe = Probe(lambda: time.sleep(0.001))

    def failing(unit: int) -> None:
        Probe.do(probe, unit)
        if unit >= fails_at:
            raise ValueError(f"unit {unit}")

    probe.do = failing  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="unit"):
        measure_samples(probe)


# ---------------------------------------------------------------- the first choice

ALL = search_space_for(num_workers=AUTO, num_threads=AUTO, prefetch_factor=AUTO, num_cores=8)


def found(
    seconds: float, *, speedup: float = 1.0, draws: bool = False, units: int = 10, cpu: float = 1.0
) -> SampleCost:
    unit = seconds / units
    return SampleCost(
        unit_seconds=unit, unit_cpu_seconds=cpu * unit, units_of_batch=units, speedup=speedup, draws=draws
    )


@pytest.mark.parametrize(
    ("seen", "chosen", "kind"),
    [
        (found(50e-6), Parallelism(0, 0, 2), "processes"),
        (found(50e-6, speedup=1.9), Parallelism(0, 0, 2), "threads"),
        (found(0.02, speedup=1.9), Parallelism(1, 2, 2), "threads"),
        (found(0.35, speedup=1.9), Parallelism(1, 4, 2), "threads"),
        (found(0.02), Parallelism(1, 0, 2), "processes"),
        (found(0.25), Parallelism(3, 0, 2), "processes"),
        (found(30.0), Parallelism(4, 0, 2), "processes"),  # half of the cores, as long as the step is not known
        (found(0.25, speedup=1.9, draws=True), Parallelism(3, 0, 2), "processes"),
        (None, Parallelism(1, 0, 2), "processes"),
    ],
    ids=str,
)
def test_cheap_is_inline_what_scales_gets_threads_and_the_rest_processes(
    seen: SampleCost | None, chosen: Parallelism, kind: str
) -> None:
    assert first_choice(ALL, seen) == (chosen, kind)


def test_with_one_core_a_batch_that_needs_it_is_made_by_whatever_has_it() -> None:
    one = search_space_for(num_workers=AUTO, num_threads=AUTO, prefetch_factor=2, num_cores=1)
    assert first_choice(one, found(0.0008))[0].is_inline
    assert not first_choice(one, found(0.0008, cpu=0.1))[0].is_inline  # a disk works next to the trainer
    assert not first_choice(ALL, found(0.0008))[0].is_inline


# ---------------------------------------------------------------- what there is to choose from


def candidates(space: SearchSpace) -> set[tuple[int, int]]:
    return {*space.processes, *space.threads}


def space(num_workers: object, num_threads: object, **others: object) -> SearchSpace:
    arguments: dict[str, object] = {"prefetch_factor": None, "num_cores": 4, **others}
    return search_space_for(num_workers=num_workers, num_threads=num_threads, **arguments)  # type: ignore[arg-type]


def test_only_what_is_left_to_us_is_chosen() -> None:
    assert space(AUTO, AUTO) == SearchSpace(
        processes=((1, 0), (2, 0), (3, 0), (4, 0)), threads=((1, 0), (1, 2), (1, 3), (1, 4)), can_be_inline=True
    )
    assert space(AUTO, 0) == SearchSpace(processes=((1, 0), (2, 0), (3, 0), (4, 0)), can_be_inline=True)
    assert space(AUTO, 2) == SearchSpace(processes=((1, 2), (2, 2)))
    assert space(2, AUTO) == SearchSpace(threads=((2, 0), (2, 2)))
    assert space(0, AUTO) == SearchSpace(threads=((0, 1), (0, 2), (0, 3), (0, 4)), can_be_inline=True)
    assert space(3, 1, prefetch_factor=AUTO) == SearchSpace(processes=((3, 1),), ahead=(2, 16))
    assert space(AUTO, AUTO, prefetch_factor=5).ahead == (5, 5)


def test_where_there_are_no_processes_threads_are_the_trainers_own() -> None:
    assert space(AUTO, AUTO, has_processes=False) == space(0, AUTO)
    assert space(AUTO, 0, has_processes=False) == SearchSpace(can_be_inline=True)
    assert space(AUTO, 3, has_processes=False) == SearchSpace(threads=((0, 3),))


def test_never_more_than_the_cores_unless_the_user_says_so() -> None:
    for num_cores in (1, 2, 3, 7):
        for workers in (AUTO, 0, 1, 2):
            for threads in (AUTO, 0, 1, 2):
                found = space(workers, threads, num_cores=num_cores)
                fixed = max(1, workers if workers != AUTO else 1) * max(1, threads if threads != AUTO else 1)
                assert all(
                    Parallelism(*candidate, 2).concurrency <= max(num_cores, fixed) for candidate in candidates(found)
                )


def test_a_batch_of_few_units_has_no_work_for_many_threads() -> None:
    assert space(AUTO, AUTO, most_threads=2).threads == ((1, 0), (1, 2))


def test_it_is_known_when_there_is_nothing_to_choose() -> None:
    assert space(0, 0).is_fixed
    assert space(0, 0, prefetch_factor=AUTO).is_fixed  # nothing is in flight there
    assert space(2, 3).is_fixed
    assert not space(2, 3, prefetch_factor=AUTO).is_fixed
    assert not space(AUTO, 0, num_cores=1).is_fixed  # inline, or one worker


def test_a_setting_reads_as_arguments_to_paste() -> None:
    assert str(Parallelism(4, 0, 2)) == "num_workers=4, num_threads=0, prefetch_factor=2"
    assert str(Parallelism(0, 0, 2)) == "num_workers=0, num_threads=0"
