"""Counters of loaders that were made one after the other, added up, are those of one loader."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.engine.stats import ProcessStats, Quantiles, Stage, Stats, counter
from stoker.engine.timing import Histogram
from tests.lab.test_verdict import stats

durations = st.lists(st.floats(1e-5, 10.0), max_size=50)


def of(seconds: list[float]) -> Quantiles:
    histogram = Histogram()
    histogram.add(np.array(seconds))
    return Quantiles.of(histogram)


@given(first=durations, second=durations)
def test_durations_have_the_number_the_mean_and_the_deviation_of_all(first: list[float], second: list[float]) -> None:
    pooled = (Stats(wait_seconds=of(first)) + Stats(wait_seconds=of(second))).wait_seconds
    whole = of(first + second)
    assert (pooled.num, pooled.most) == (whole.num, whole.most)
    assert pooled.mean == pytest.approx(whole.mean)
    assert pooled.deviation == pytest.approx(whole.deviation, abs=1e-6)
    least, most = (edge([one.p50 for one in (of(first), of(second)) if one.num] or [0.0]) for edge in (min, max))
    assert least - 1e-9 <= pooled.p50 <= most + 1e-9


def test_sums_are_sums_shares_are_means_and_workers_are_known_by_their_place() -> None:
    one = replace(stats(wait=0.03, cpu=0.01), queue_depth=1.0, queue_empty_share=0.0)
    other = replace(
        stats(wait=0.03, cpu=0.01, num_workers=3),
        num_batches=300,
        queue_depth=3.0,
        queue_empty_share=None,
        trainer=ProcessStats(pid=1, role="trainer", cpu_seconds=2.0, delay_seconds=0.5, read_bytes=7),
    )
    both = one + other
    assert (both.num_batches, both.num_samples, both.num_iterations) == (400, 6400, 2)
    assert both.seconds == one.seconds + other.seconds
    assert both.first_batch_seconds == [0.03, 0.03]
    assert both.queue_depth == 2.5
    assert both.queue_empty_share == 0.0
    read = one.stages["read"].busy_seconds + other.stages["read"].busy_seconds
    assert both.stages["read"] == Stage(busy_seconds=read, cpu_seconds=2.0)
    assert both.trainer == ProcessStats(pid=1, role="trainer", cpu_seconds=3.0, delay_seconds=0.5, read_bytes=7)
    assert [worker.role for worker in both.workers] == ["worker 0", "worker 1", "worker 2"]
    assert both.laps is not None and len(both.laps["asked"]) == 200
    assert both.config == other.config


def test_nothing_added_changes_nothing() -> None:
    seen = stats(wait=0.03, cpu=0.01)
    assert Stats() + seen == seen
    assert (seen + Stats(kind=seen.kind, engine=seen.engine)).seconds == 5.0


def test_a_row_in_the_table_of_the_report_is_for_durations_only() -> None:
    with pytest.raises(AssertionError, match="only durations have a row"):
        counter(0, label="slow steps")
