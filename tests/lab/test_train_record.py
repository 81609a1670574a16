"""Where a step's time goes: the arithmetic, on hand-made records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import ArgumentError
from stoker.lab.trial.train_record import (
    CACHED,
    COMPUTE,
    COPY,
    DATA,
    FETCH,
    PREPARATION,
    REAL,
    RESIDENT,
    TrainBench,
    Way,
    split_data_seconds,
)


def bench(
    resident: list[float],
    cached: list[float] | None,
    real: list[float],
    *,
    waits: tuple[float, float] = (0.0, 0.0),
    blocked: float | None = None,
    gpus: int = 1,
    counts_slowing: bool = False,
) -> TrainBench:
    ways = [Way(name=RESIDENT, step_seconds=resident, wait_seconds=[0.0] * len(resident))]
    if cached is not None:
        ways.append(Way(name=CACHED, step_seconds=cached, wait_seconds=[waits[0]] * len(cached)))
    ways.append(Way(name=REAL, step_seconds=real, wait_seconds=[waits[1]] * len(real)))
    return TrainBench(ways=ways, blocked_share=blocked, num_gpus=gpus, counts_slowing=counts_slowing)


def seconds_of(found: TrainBench) -> dict[str, float]:
    return {part.name: part.seconds for part in found.parts()}


def test_differences_of_the_three_ways_are_stalls() -> None:
    found = bench([0.010, 0.010], [0.012, 0.012], [0.020, 0.020], blocked=0.75, gpus=8)
    assert seconds_of(found) == pytest.approx({COMPUTE: 0.010, COPY: 0.002, PREPARATION: 0.002, FETCH: 0.006})
    shares = {part.name: part.share for part in found.parts()}
    assert shares == pytest.approx({COMPUTE: 0.5, COPY: 0.1, PREPARATION: 0.1, FETCH: 0.3})
    hours = {part.name: part.gpu_hours_per_day for part in found.parts()}
    assert hours == pytest.approx({COMPUTE: 96.0, COPY: 19.2, PREPARATION: 19.2, FETCH: 57.6})
    assert found.stall_share == pytest.approx(0.5)
    assert found.lost_gpu_hours_per_day == pytest.approx(96.0)


def test_what_cannot_be_told_apart_is_told_together() -> None:
    assert seconds_of(bench([1.0], [1.5], [4.0])) == pytest.approx({COMPUTE: 1.0, COPY: 0.5, DATA: 2.5})
    assert seconds_of(bench([1.0], None, [4.0])) == pytest.approx({COMPUTE: 1.0, DATA: 3.0})
    alone = bench([1.0], None, [4.0], blocked=1.0)
    assert seconds_of(alone) == pytest.approx({COMPUTE: 1.0, PREPARATION: 0.0, FETCH: 3.0})


def test_a_step_that_workers_slow_down_is_preparation() -> None:
    # of the 6 ms more, 2 ms are the step's own: 14 ms were computed instead of 12 ms
    found = bench([0.012], [0.013], [0.019], waits=(0.001, 0.005), blocked=0.5, counts_slowing=True)
    assert found.slowing_seconds == pytest.approx(0.002)
    assert seconds_of(found) == pytest.approx({COMPUTE: 0.012, COPY: 0.001, PREPARATION: 0.004, FETCH: 0.002})
    idle = replace(found, making_cpu_seconds=0.0005)  # who works so little cannot slow anyone down by more
    assert idle.slowing_seconds == 0.0005
    unseen = bench([0.012], [0.013], [0.019], waits=(0.001, 0.005), blocked=0.5)
    assert unseen.slowing_seconds == 0.0
    assert seconds_of(unseen)[FETCH] == pytest.approx(0.003)


def test_deviations_are_those_of_differences_within_rounds() -> None:
    # a slow second round is slow for all
    found = bench([0.010, 0.020], [0.011, 0.021], [0.015, 0.025])
    compute, copy, data = found.parts()
    assert compute.deviation == pytest.approx(0.00707, rel=0.01)
    assert copy.deviation == pytest.approx(0, abs=1e-12)
    assert data.deviation == pytest.approx(0, abs=1e-12)


times = st.lists(st.floats(1e-6, 10), min_size=3, max_size=3)


@given(
    resident=times,
    cached=st.none() | times,
    real=times,
    blocked=st.none() | st.floats(0, 1),
    wait=st.floats(0, 1e-6),
    counts_slowing=st.booleans(),
)
def test_parts_are_never_negative_and_make_up_the_whole_whatever_the_noise(
    resident: list[float],
    cached: list[float] | None,
    real: list[float],
    blocked: float | None,
    wait: float,
    counts_slowing: bool,
) -> None:
    found = bench(resident, cached, real, waits=(wait, wait), blocked=blocked, counts_slowing=counts_slowing)
    parts = found.parts()
    assert all(part.seconds >= 0 for part in parts)
    assert sum(part.seconds for part in parts) == pytest.approx(sum(real) / 3)
    assert sum(part.share for part in parts) == pytest.approx(1)
    assert 0 <= found.stall_share <= 1


@given(data=st.floats(0, 10), slowing=st.floats(-1, 20), share=st.floats(-0.5, 1.5))
def test_preparing_and_fetching_are_all_of_the_data_stall(data: float, slowing: float, share: float) -> None:
    preparation, fetch = split_data_seconds(data, slowing, share)
    assert preparation + fetch == pytest.approx(data)
    assert preparation >= -1e-12
    assert fetch >= 0


def test_a_record_comes_back_from_its_file_and_others_are_refused(tmp_path: Path) -> None:
    found = bench([1.0, 2.0], [1.5, 2.0], [4.0, 4.0], blocked=0.5, gpus=3)
    found.save(tmp_path / "train.json")
    assert TrainBench.load(tmp_path / "train.json") == found
    for text in ("", "[]", '{"format": "stoker-run"}', '{"format": "stoker-train", "version": 2}'):
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(ArgumentError, match="is not a record of a training step"):
            TrainBench.load(tmp_path / "other.json")
