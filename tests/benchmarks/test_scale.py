"""How costs grow: the arithmetic on hand-made curves, what is left out and why, and small real measurements."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.scale import growth
from benchmarks.scale.cases import BATCH_SIZE, Case, Numbers, host, loaders, measured, shares, state_after
from benchmarks.scale.growth import foreseen, measure_scale
from benchmarks.scale.plots import scale_figure
from benchmarks.scale.record import (
    FIRST,
    MEMORY,
    RANKS,
    SAMPLES,
    STATE,
    STEP,
    STEPS,
    STOKER,
    TORCH,
    WORKERS,
    Curve,
    Limit,
    Point,
    Scale,
    exponent,
)
from benchmarks.scale.tables import format_place, scale_remarks
from stoker import DataLoader
from stoker.errors import ArgumentError
from stoker.lab.trial.child import Child, forked

pytestmark = pytest.mark.timed

SMALL = {SAMPLES: (1000, 100_000), WORKERS: (1, 2), RANKS: (1, 8), STEPS: (1, 1000)}


def curve(ys: list[float], *, measure: str = FIRST) -> Curve:
    points = [Point(x=10**power, values=[y]) for power, y in enumerate(ys)]
    return Curve(axis=SAMPLES, measure=measure, loader=STOKER, points=points)


@given(
    slope=st.floats(-2, 2),
    factor=st.floats(1e-6, 1e6),
    xs=st.lists(st.integers(1, 10**9), min_size=2, max_size=9, unique=True),
)
def test_the_exponent_of_a_power_is_that_power(slope: float, factor: float, xs: list[int]) -> None:
    found = exponent([(x, factor * x**slope) for x in sorted(xs)])
    assert found == pytest.approx(slope, abs=1e-4)


def test_one_point_has_no_exponent() -> None:
    assert exponent([]) is None
    assert exponent([(5.0, 1.0)]) is None
    assert curve([1.0]).exponent is None
    assert curve([1.0]).factor is None


def test_growth_is_taken_from_the_far_end_where_a_constant_no_longer_hides_it() -> None:
    hidden = curve([1e-3 + 1e-8 * 10**power for power in range(10)])
    assert hidden.exponent == pytest.approx(0.93, abs=0.02)
    assert exponent([(point.x, point.median) for point in hidden.points]) == pytest.approx(0.43, abs=0.02)
    assert hidden.factor == pytest.approx(1e4, rel=0.01)
    assert curve([1e-3] * 7).exponent == pytest.approx(0, abs=1e-9)


def test_memory_below_what_can_be_told_is_flat_even_if_it_shrinks() -> None:
    noise = curve([-50_000.0, 300_000.0, 0.0, 4096.0], measure=MEMORY)
    assert (noise.exponent, noise.factor) == (0.0, 1.0)


def test_points_that_were_left_out_do_not_count() -> None:
    points = [Point(x=10, values=[1.0, 3.0]), Point(x=100, values=[20.0]), Point(x=1000, skipped="took too long")]
    one = Curve(axis=SAMPLES, measure=FIRST, loader=TORCH, points=points)
    assert one.exponent == pytest.approx(1.0)
    assert one.factor == pytest.approx(10.0)
    assert points[0].median == 2.0
    assert points[0].deviation == pytest.approx(math.sqrt(2))
    assert points[1].deviation == 0.0
    assert math.isnan(points[2].median)


@given(
    slope=st.floats(0, 3),
    xs=st.lists(st.integers(1, 10**6), min_size=2, max_size=5, unique=True).map(sorted),
    further=st.integers(2, 1000),
)
def test_what_is_foreseen_grows_as_before_and_at_most_linearly(slope: float, xs: list[int], further: int) -> None:
    before = [(x, float(x) ** slope) for x in xs]
    x = xs[-1] * further
    expected = before[-1][1] * further ** min(1.0, slope)
    assert foreseen(before, x) == pytest.approx(expected, rel=1e-6)


def test_without_a_trend_the_last_is_foreseen() -> None:
    assert foreseen([], 10) == 0.0
    assert foreseen([(1, 3.0)], 10) == 3.0
    assert foreseen([(1, 5.0), (10, 3.0)], 100) == 3.0
    assert foreseen([(1, -5.0), (10, 3.0)], 100) == 3.0


# ---------------------------------------------------------------- what is run


def test_a_state_is_what_so_many_steps_would_have_made() -> None:
    def made() -> DataLoader[int]:
        return DataLoader(Numbers(1000), BATCH_SIZE, shuffle=True, seed=7)

    walked, jumped = made(), made()
    batches = iter(walked)
    for _ in range(37):
        next(batches)
    resumed = made()
    resumed.load_state_dict(state_after(jumped, 37))
    assert next(iter(resumed)).tolist() == next(batches).tolist()
    batches.close()


@pytest.mark.parametrize("num_ranks", [1, 3, 64])
def test_shares_of_ranks_are_equal(num_ranks: int) -> None:
    found = shares(num_ranks)
    assert found == (10**6 // (BATCH_SIZE * num_ranks), BATCH_SIZE, True)


@pytest.fixture(scope="module")
def found() -> Scale:
    shown: list[tuple[int, int, str]] = []
    scale = measure_scale(repetitions=2, places=SMALL, notify=lambda *what: shown.append(what))
    assert [number for number, _, _ in shown] == list(range(2 * 8 * len(loaders())))
    return scale


def test_every_loader_is_measured_at_every_place_as_often_as_asked(found: Scale) -> None:
    names = loaders()
    assert {one.loader for one in found.curves} == set(names)
    for one in found.curves:
        assert [point.x for point in one.points] == list(SMALL[one.axis])
        assert all(len(point.values) == 2 for point in one.points)
        assert one.measure == MEMORY or all(value > 0 for point in one.points for value in point.values)
    assert found.curve(STEPS, STATE, STOKER) is not None
    assert found.curve(STEPS, STATE, TORCH) is None  # it has none
    assert found.curve(SAMPLES, STEP, STOKER) is not None


def test_shuffling_a_hundred_times_as_many_samples_costs_us_no_memory_and_torch_some(found: Scale) -> None:
    ours, theirs = found.curve(SAMPLES, MEMORY, STOKER), found.curve(SAMPLES, MEMORY, TORCH)
    assert ours is not None
    assert theirs is not None
    assert ours.points[1].median - ours.points[0].median < 2 << 20
    assert theirs.points[1].median > 2 << 20  # 100,000 numbers in a list


def test_ranks_get_equal_shares(found: Scale) -> None:
    assert [one.num_ranks for one in found.shares] == [1, 8]
    assert all(one.are_equal for one in found.shares)


def test_the_record_comes_back_from_its_file_and_its_table_has_every_point(found: Scale, tmp_path: Path) -> None:
    found.save(tmp_path / "scale.json")
    assert Scale.from_dict(json.loads((tmp_path / "scale.json").read_text())) == found
    rows = list(csv.DictReader(io.StringIO(found.csv())))
    assert len(rows) == sum(len(one.points) for one in found.curves)
    assert float(rows[0]["median"]) == pytest.approx(found.curves[0].points[0].median)


def test_memory_is_limited_for_real() -> None:
    def ask(child: Child, num_samples: int) -> Any:
        return child.ask("case", Case(SAMPLES, num_samples, TORCH), limit_seconds=60)

    with Child(host, [TORCH], 64 << 20) as child:
        with pytest.raises(MemoryError):
            ask(child, 20_000_000)  # as a tensor alone 160 MB
        assert ask(child, 1000)[STEP] > 0


def test_what_takes_too_much_is_left_out_with_all_that_comes_after_it() -> None:
    places = {**SMALL, SAMPLES: (10**3, 10**5, 10**6, 3 * 10**7, 10**9)}
    limit = Limit(seconds=20, memory_bytes=100 << 20)
    scale = measure_scale(axes=[SAMPLES], repetitions=1, places=places, limit=limit)
    ours, theirs = scale.curve(SAMPLES, FIRST, STOKER), scale.curve(SAMPLES, FIRST, TORCH)
    assert ours is not None
    assert theirs is not None
    assert [point.skipped for point in ours.points] == [None] * 5
    assert [point.skipped is None for point in theirs.points] == [True, True, True, False, False]
    assert "GiB, more than the 0.1 GiB allowed" in str(theirs.points[3].skipped)


def slow_host(names: list[str], memory_bytes: int | None) -> Callable[[str, Case], Any]:
    """Stand for loaders that take forever, crash, fail or lack memory, and for one that does not."""

    def answer(what: str, case: Case) -> Any:
        if case.loader == TORCH and case.x == 10:
            return forked(sleeping)
        if case.loader == TORCH and case.x == 100:
            raise MemoryError
        if case.loader == TORCH and case.x == 1000:
            raise ValueError("odd\nand more")
        if case.loader == TORCH and case.x == 10_000:
            os.abort()
        return {FIRST: 1.0, STEP: 1.0, MEMORY: 0.0}

    return answer


def sleeping() -> None:
    time.sleep(1000)


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        (10, "took longer than 0.4 s, twice what is allowed"),
        (100, "took more than the 1.0 GiB allowed"),
        (1000, "failed: ValueError: odd"),
        (10_000, "ended (SIGABRT), as it may where memory is limited"),
    ],
)
def test_what_hangs_crashes_or_fails_is_left_out_and_the_rest_is_measured(
    place: int, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "host", slow_host)
    limit = Limit(seconds=0.2, memory_bytes=1 << 30)
    places = {SAMPLES: (1, place), STEPS: (place, 10 * place)}
    scale = measure_scale(axes=[SAMPLES, STEPS], repetitions=2, places=places, limit=limit)
    theirs, ours = scale.curve(SAMPLES, FIRST, TORCH), scale.curve(SAMPLES, FIRST, STOKER)
    assert theirs is not None
    assert ours is not None
    assert [point.skipped for point in theirs.points] == [None, shown]
    assert [len(point.values) for point in ours.points] == [2, 2]
    lost = scale.curve(STEPS, FIRST, TORCH)  # nothing of it could be measured, and that is told
    assert lost is not None
    assert [(point.values, point.skipped) for point in lost.points] == [([], shown)] * 2
    assert f"skipped: torch with {format_place(place)} and {format_place(10 * place)} steps, which {shown}" in " ".join(
        scale_remarks(scale)
    )
    assert len([panel for panel in scale_figure(scale).axes if panel.axison]) == 6


def test_an_axis_that_there_is_not_is_refused() -> None:
    with pytest.raises(ArgumentError, match="there is no axis 'epochs'\nhint: choose among samples"):
        measure_scale(axes=["epochs"])
    with pytest.raises(ArgumentError, match="repetitions=0 measures nothing"):
        measure_scale(repetitions=0)


def test_a_case_leaves_the_memory_that_it_says_and_no_more() -> None:
    answer = forked(measured, Case(SAMPLES, 10**9, STOKER), os.getpid())
    assert answer[MEMORY] < 8 << 20
