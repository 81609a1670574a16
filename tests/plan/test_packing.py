"""Best fit over counts, next to best fit item by item."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import ArgumentError
from stoker.plan.packing import Packing, best_fit, rotations

lengths_and_items = st.integers(1, 40).flatmap(
    lambda length: st.tuples(st.just(length), st.lists(st.integers(1, length), max_size=120))
)


def counted(items: list[int], length: int) -> np.ndarray:
    return np.bincount(np.array(items, np.int64), minlength=length + 1)


def one_by_one(items: list[int], length: int) -> list[int]:
    """Return the room that is left in each row, if each item goes where it fits best, the longest first."""
    rooms: list[int] = []
    for item in sorted(items, reverse=True):
        fitting = [room for room in rooms if room >= item]
        if fitting:
            rooms.remove(min(fitting))
        rooms.append((min(fitting) if fitting else length) - item)
    return rooms


def rows_of(packing: Packing) -> list[list[tuple[int, int]]]:
    """Return the (length, rank) of all items of each row."""
    rows: list[list[tuple[int, int]]] = []
    for group in range(packing.num_groups):
        entries = range(int(packing.entry_starts[group]), int(packing.entry_starts[group + 1]))
        for row in range(int(packing.row_starts[group + 1] - packing.row_starts[group])):
            rows.append([])
            for entry in entries:
                copies = int(packing.copies[entry])
                first = int(packing.ranks[entry]) + row * copies
                rows[-1] += [(int(packing.lengths[entry]), first + copy) for copy in range(copies)]
    return rows


@given(given=lengths_and_items)
def test_every_item_is_in_one_row_and_no_row_is_too_long(given: tuple[int, list[int]]) -> None:
    length, items = given
    rows = rows_of(best_fit(counted(items, length), length))
    expected = [(size, rank) for size in range(1, length + 1) for rank in range(items.count(size))]
    assert sorted(item for row in rows for item in row) == expected
    assert all(0 < sum(size for size, _ in row) <= length for row in rows)


@given(given=lengths_and_items)
def test_rows_are_filled_as_by_best_fit_item_by_item(given: tuple[int, list[int]]) -> None:
    length, items = given
    packing = best_fit(counted(items, length), length)
    rows = rows_of(packing)
    assert packing.num_rows == len(rows)
    rooms = [length - sum(size for size, _ in row) for row in rows]
    assert sorted(rooms) == sorted(one_by_one(items, length))


@given(given=lengths_and_items)
def test_items_of_a_row_come_by_decreasing_length(given: tuple[int, list[int]]) -> None:
    length, items = given
    for row in rows_of(best_fit(counted(items, length), length)):
        sizes = [size for size, _ in row]
        assert sizes == sorted(sizes, reverse=True)


def test_the_cost_does_not_grow_with_the_number_of_items() -> None:
    few = best_fit(np.array([0, 3, 5, 7]), 10)
    many = best_fit(np.array([0, 3, 5, 7]) * 10**12, 10)
    assert many.num_groups <= 2 * few.num_groups
    assert many.num_rows == (3 + 10 + 21) * 10**12 // 10


def test_counts_may_end_before_the_length() -> None:
    packing = best_fit(np.array([0, 2]), 1000)
    assert packing.num_rows == 1
    assert rows_of(packing) == [[(1, 0), (1, 1)]]


def test_nothing_makes_no_rows() -> None:
    packing = best_fit(np.zeros(5, np.int64), 4)
    assert (packing.num_rows, packing.num_groups, len(packing.lengths)) == (0, 0, 0)


@pytest.mark.parametrize(("counts", "length"), [([1, 2], 4), ([0, 0, 0, 1], 2), ([0, -1], 4), ([[0, 1]], 4)], ids=str)
def test_counts_that_cannot_be_are_refused(counts: list[int], length: int) -> None:
    with pytest.raises(ArgumentError, match="counts must be those of items"):
        best_fit(np.array(counts), length)


def test_a_row_has_a_length() -> None:
    with pytest.raises(ArgumentError, match="length must be at least 1, got 0"):
        best_fit(np.array([0]), 0)


@given(
    counts=st.lists(st.integers(1, 1 << 40), min_size=1, max_size=20),
    key=st.integers(0, (1 << 64) - 1),
    window=st.integers(0, 1 << 40),
)
def test_rotations_are_within_their_classes_and_each_its_own(counts: list[int], key: int, window: int) -> None:
    nums = np.array(counts)
    windows, lengths = np.full(len(nums), window), np.arange(1, len(nums) + 1)
    found = rotations(windows, lengths, nums, key=key)
    assert ((found >= 0) & (found < nums)).all()
    alone = [
        int(rotations(windows[at : at + 1], lengths[at : at + 1], nums[at : at + 1], key=key)[0])
        for at in range(len(nums))
    ]
    assert found.tolist() == alone


def test_rotations_differ_between_keys_windows_and_lengths() -> None:
    many = np.full(8, 1 << 40)
    numbers = np.arange(8)
    same = np.zeros(8, np.int64)
    of_lengths = rotations(same, numbers, many, key=1)
    of_windows = rotations(numbers, same, many, key=1)
    of_keys = [int(rotations(same[:1], same[:1], many[:1], key=key)[0]) for key in range(8)]
    assert len(set(of_lengths.tolist())) == len(set(of_windows.tolist())) == len(set(of_keys)) == 8
