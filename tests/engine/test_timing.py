"""Laps summed up: the same however they are cut, and quantiles to one percent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.engine.timing import NUM_KEPT, WIDTH, BatchTimeline, BatchTimes, Histogram

durations = st.lists(st.floats(1e-6, 1e4), min_size=1, max_size=300)


def lap(asked: float, *, wait: float, ready: float = 0.0, worker: int = 0, read: float = 0.01) -> tuple[float, ...]:
    sent = asked - ready
    return BatchTimes(asked, asked + wait, 0.0, sent - read - 0.002, sent - 0.001, read, 0.0, 0.001, worker, sent, 0.0)


@given(durations, st.sampled_from((0.5, 0.9, 0.99)))
def test_quantiles_are_right_to_one_percent(seconds: list[float], share: float) -> None:
    histogram = Histogram()
    for part in np.array_split(np.array(seconds), 3):
        histogram.add(part)
    exact = sorted(seconds)[min(len(seconds) - 1, int(share * len(seconds)))]
    assert histogram.quantile(share) == pytest.approx(exact, rel=0.011)
    assert histogram.mean == pytest.approx(float(np.mean(seconds)))
    assert histogram.most == max(seconds)
    assert histogram.deviation == pytest.approx(float(np.std(seconds)), rel=1e-3, abs=1e-3 * max(seconds))


def test_nothing_has_quantiles_of_zero() -> None:
    assert Histogram().quantile(0.99) == Histogram().mean == Histogram().deviation == 0


waits = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=60)


@given(waits, st.sets(st.integers(0, 60)))
def test_when_laps_are_summed_up_makes_no_difference(times: list[tuple[float, float]], cuts: set[int]) -> None:
    at_once, in_parts = BatchTimeline(), BatchTimeline()
    for laps in (at_once, in_parts):
        laps.begin()
        now = 10.0
        for number, (wait, step) in enumerate(times):
            laps.extend(lap(now, wait=wait, worker=number % 3, ready=now - (number % 5) * 0.3))
            now += wait + step
            if laps is in_parts and number in cuts:
                laps.fold()
        laps.fold()
    assert len(at_once) == len(in_parts) == len(times)
    assert at_once.latest() == in_parts.latest()
    assert at_once.first_seconds == in_parts.first_seconds == [pytest.approx(times[0][0])]
    for name, value in at_once.sums.items():
        assert in_parts.sums[name] == pytest.approx(value)
    for one, other in ((at_once.waits, in_parts.waits), (at_once.steps, in_parts.steps)):
        assert (one.num, one.most) == (other.num, other.most)
        assert other.total == pytest.approx(one.total)
    assert at_once.num_by_worker == in_parts.num_by_worker
    assert (at_once.num_stalls, at_once.num_empty) == (in_parts.num_stalls, in_parts.num_empty)
    assert (at_once.num_asked, at_once.depths) == (in_parts.num_asked, in_parts.depths)
    whole = at_once.periods.total + at_once.first_seconds[0]
    assert whole == pytest.approx(sum(wait for wait, _ in times) + sum(step for _, step in times[:-1]))


def test_the_depth_of_the_queue_is_what_was_ready_when_a_batch_was_asked_for() -> None:
    laps = BatchTimeline()
    laps.begin()
    for number in range(4):  # all four came before the first was asked for
        laps.extend(lap(100.0 + number, wait=0.0, ready=50.0 + number))
    laps.fold()
    assert laps.mean_depth == (4 + 3 + 2 + 1) / 4
    assert laps.num_empty == 0
    late = BatchTimeline()
    late.begin()
    for number in range(4):  # each came while it was waited for
        late.extend(lap(100.0 + number, wait=0.5, ready=-0.4))
    late.fold()
    assert late.mean_depth == 0
    assert late.num_empty == 4


def test_a_pause_between_iterations_is_no_step() -> None:
    laps = BatchTimeline()
    for begin in (0.0, 1000.0):
        laps.begin()
        for number in range(3):
            laps.extend(lap(begin + number, wait=0.25))
    laps.fold()
    assert laps.steps.num == 4
    assert laps.steps.most == pytest.approx(0.75)
    assert laps.first_seconds == [0.25, 0.25]


def test_only_the_latest_laps_are_kept_one_by_one() -> None:
    laps = BatchTimeline()
    laps.begin()
    for number in range(NUM_KEPT + 10):
        laps.extend(lap(float(number), wait=0.5))
    laps.fold()
    kept = laps.latest()
    assert len(kept) == WIDTH
    assert kept["asked"] == [float(number) for number in range(10, NUM_KEPT + 10)]
    assert len(laps) == NUM_KEPT + 10
    assert laps.latest(3)["asked"] == kept["asked"][-3:]


def test_first_batches_of_very_many_iterations_take_no_more_memory() -> None:
    laps = BatchTimeline()
    for number in range(1500):
        laps.begin()
        laps.extend(lap(float(number), wait=0.5))
    laps.fold()
    assert len(laps.first_seconds) == 1000
    assert sum(laps.first_seconds) + laps.forgotten_seconds == 750
