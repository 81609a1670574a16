"""The search for the largest batch size finds it, for whatever fits, within the trials it promises."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from stoker.lab.trial.batch_size import max_trials, next_below, round_size, search

mosts = st.integers(1, 1 << 20)


class Oracle:
    """Knows what fits, and who asked."""

    def __init__(self, limit: int) -> None:
        self.limit, self.asked = limit, list[int]()

    def __call__(self, size: int) -> bool:
        self.asked.append(size)
        return size <= self.limit


@given(limit=st.integers(0, 1 << 20) | st.integers(0, 300), most=mosts, start=st.integers(1, 4096))
@example(limit=0, most=1, start=1)
@example(limit=7, most=8, start=8)
@example(limit=10**6, most=100, start=8)
def test_the_largest_multiple_that_fits_is_found_within_the_promised_trials(limit: int, most: int, start: int) -> None:
    oracle = Oracle(limit)
    found = search(oracle, start=start, most=most)
    expected = round_size(min(limit, most))
    assert found.largest == (expected or None)
    assert len(oracle.asked) == len(set(oracle.asked)) <= max_trials(start=start, most=most)
    assert all(size == round_size(size) <= most for size in oracle.asked)
    too_large = [size for size in oracle.asked if size > limit]
    assert found.too_large == (min(too_large) if too_large else None)


@given(size=st.integers(1, 10**7))
def test_sizes_are_multiples_of_32_or_16_or_8_and_not_above(size: int) -> None:
    found = round_size(size)
    assert found <= size
    if size >= 32:
        assert found % 32 == 0
        assert size - found < 32
    elif size >= 8:
        assert found in (8, 16)
        assert found == (16 if size >= 16 else 8)
    else:
        assert found == size


@given(size=st.integers(1, 10**6).map(round_size))
def test_below_each_size_comes_the_next_smaller_one(size: int) -> None:
    below = next_below(size)
    if size == 1:
        assert below is None
    else:
        assert below == round_size(size - 1)


def test_few_trials_are_enough_for_large_sizes() -> None:
    assert max_trials(start=8, most=65536) <= 26
    oracle = Oracle(10_000)
    assert search(oracle).largest == 9984
    assert oracle.asked[:12] == [8 << doubling for doubling in range(12)]
    assert len(oracle.asked) == 12 + 8
