"""Shares kept to the sample, at every turn."""

from __future__ import annotations

import threading
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker import native
from stoker.errors import ArgumentError
from stoker.plan.blend import Blend, WeightPhase
from stoker.plan.quota import MAX_PERIOD, Quota, apportioned, exact, whole

weights = st.lists(st.integers(1, 60), min_size=1, max_size=12)
awkward = st.sampled_from([0.1 + 0.2, 1 / 3, 0.7, 1.2e12, 3e-9, 1, 17, 2**-30, 0.123456789, 1e300])


def check_shares(table: Any, shares: list[int]) -> None:
    """At every turn each source has its share to within 1 - 1 / (2k - 2), in whole numbers."""
    period, num_sources = sum(shares), len(shares)
    counts = (np.asarray(table)[:, None] == np.arange(num_sources)).cumsum(axis=0)
    turns = np.arange(1, period + 1)[:, None]
    off = np.abs(counts * period - turns * np.array(shares)).max()
    bound = 2 * num_sources - 2
    assert off * bound <= period * (bound - 1) if num_sources > 1 else off == 0
    assert counts[-1].tolist() == shares


@given(shares=weights)
@settings(max_examples=300)
def test_every_source_has_its_share_at_every_turn(shares: list[int]) -> None:
    check_shares(apportioned(np.array(shares)), shares)


@given(numbers=st.lists(awkward, min_size=1, max_size=6))
def test_awkward_weights_have_their_shares_too(numbers: list[float]) -> None:
    fractions = [exact(number) for number in numbers]
    shares = whole(fractions, most=4096)
    assert min(shares) >= 1
    assert sum(shares) <= 4096
    check_shares(apportioned(np.array(shares)), list(shares))


@given(shares=weights, turns=st.lists(st.integers(0, 2**45), min_size=1, max_size=20))
def test_turns_can_be_looked_up_and_found_far_away(shares: list[int], turns: list[int]) -> None:
    quota = Quota(shares)
    numbers = np.array(turns, np.int64)
    sources, drawn = quota.at(numbers)
    counts = quota.counts(numbers)
    for turn, source, number, row in zip(turns, sources.tolist(), drawn.tolist(), counts.tolist()):
        assert quota.find(source, number) == turn
        assert row[source] == number
        assert sum(row) == turn
        for count, weight in zip(row, quota.weights.tolist()):
            assert abs(count * quota.period - turn * weight) < quota.period


@given(shares=weights)
def test_the_native_table_is_the_same(shares: list[int]) -> None:
    table = np.empty(sum(shares), np.uint16)
    if not native.apportion(np.array(shares), table):
        pytest.skip("there is no native library here")
    assert table.tolist() == apportioned(np.array(shares)).tolist()


def test_the_native_table_is_the_same_for_the_longest_period() -> None:
    shares = np.array(whole([exact(0.1 + 0.2), exact(1 / 3), exact(1.2), exact(3e-9), exact(0.77)]))
    table = np.empty(MAX_PERIOD, np.uint16)
    if not native.apportion(shares, table):
        pytest.skip("there is no native library here")
    assert np.array_equal(table, apportioned(shares))
    check_shares(table, shares.tolist())


def test_weights_are_taken_as_they_are_written() -> None:
    assert exact(0.1) == Fraction(1, 10)
    assert exact(np.float32(0.1)) == Fraction(1, 10)
    assert exact(1.2e12) == 1_200_000_000_000
    assert whole([exact(0.7), exact(0.2), exact(0.1)]) == (7, 2, 1)
    assert whole([exact(1.2e12), exact(3e11)]) == (4, 1)
    assert whole([Fraction(1, 3), Fraction(2, 3)]) == (1, 2)


def test_weights_that_need_too_long_a_period_are_rounded_and_none_is_lost() -> None:
    shares = whole([exact(0.5), exact(1e-12), exact(1e-12), exact(0.5)])
    assert sum(shares) == MAX_PERIOD
    assert shares[1] == shares[2] == 1
    assert abs(shares[0] - shares[3]) == 0
    third = whole([exact(1 / 3), exact(2 / 3)])
    assert abs(Fraction(third[0], sum(third)) - exact(1 / 3) / (exact(1 / 3) + exact(2 / 3))) < Fraction(1, MAX_PERIOD)


@pytest.mark.parametrize(
    "weight", [0, -1, 0.0, -0.5, float("nan"), float("inf"), True, "0.5", None, 1j, np.complex64(1)]
)
def test_what_is_no_weight_is_refused(weight: Any) -> None:
    with pytest.raises(ArgumentError, match="hint: give a positive number"):
        exact(weight)


# ---------------------------------------------------------------- segments

tables = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 9).map(Fraction), min_size=1)


@st.composite
def blends(draw: st.DrawFn) -> Blend:
    starts = sorted({0, *draw(st.lists(st.integers(1, 150), max_size=3))})
    caps = draw(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 60), max_size=4))
    schedule = tuple((start, draw(tables)) for start in starts)
    phases = [WeightPhase(start=0, schedule=schedule, caps=caps)]
    if draw(st.booleans()):
        start = draw(st.integers(1, 120))
        phases.append(WeightPhase(start=start, schedule=((0, draw(tables)),), caps=caps))
    return Blend("abcd", phases)


@given(blend=blends())
@settings(max_examples=200)
def test_a_course_loses_and_repeats_nothing_over_its_segments(blend: Blend) -> None:
    total = 300 if blend.total is None else min(300, blend.total)
    numbers = np.arange(total)
    sources, drawn = blend.at(numbers)
    seen = [0] * 4
    counts = blend.counts(np.arange(total + 1))
    for number, (source, own) in enumerate(zip(sources.tolist(), drawn.tolist())):
        assert counts[number].tolist() == seen
        assert own == seen[source]  # its next one, whichever segment it is in
        assert blend.find(source, own) == number
        seen[source] += 1
    assert counts[total].tolist() == seen
    for name, cap in blend.phases[-1].caps.items():
        assert seen["abcd".index(name)] <= cap or len(blend.phases) > 1
    for segment in blend.segments(total):
        stop = min(total, total if segment.stop is None else segment.stop)
        length = stop - segment.start
        for at, share in zip(segment.sources.tolist(), segment.quota.shares):
            assert abs(counts[stop][at] - counts[segment.start][at] - length * share) < 1


def test_a_source_that_has_given_all_drops_out_and_the_others_share_its_place() -> None:
    weights = {"a": Fraction(2), "b": Fraction(1), "c": Fraction(1)}
    blend = Blend("abc", [WeightPhase(start=0, schedule=((0, weights),), caps={"a": 10})])
    counts = blend.counts(np.array([20, 120]))
    assert counts.tolist() == [[10, 5, 5], [10, 55, 55]]
    assert blend.find(0, 10) is None
    assert blend.total is None


def test_a_thread_that_sees_a_segment_finds_where_it_starts() -> None:
    weights = {"a": Fraction(1), "b": Fraction(1)}
    blend = Blend("ab", [WeightPhase(start=0, schedule=((0, weights),), caps={"a": 2})])
    found: list[int] = []

    class Watched(list[Any]):
        """Another thread asks for a sample of the new segment while it is being made."""

        def append(self, value: Any) -> None:
            super().append(value)
            asking = threading.Thread(target=lambda: found.append(int(blend.at(np.array([20]))[0][0])))
            asking.start()
            asking.join(0.1)  # it may have to wait for us
            waiting.append(asking)

    waiting: list[threading.Thread] = []
    blend._segments, blend._starts = Watched(blend._segments), Watched(blend._starts)
    assert blend.at(np.array([20]))[0].tolist() == [1]
    for thread in waiting:
        thread.join()
    assert found == [1, 1]  # never a third one of "a"
