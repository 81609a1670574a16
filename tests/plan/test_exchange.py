"""Parts of rows exchanged: the same items in as many rows, and rows of unlike lengths."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from stoker.plan import exchange as exchange_module
from stoker.plan.exchange import Exchanged, exchange
from stoker.plan.packing import best_fit, starts_of

Rows = list[list[int]]

LENGTH = 24
items = st.lists(st.integers(1, LENGTH), min_size=1, max_size=120)


def sections_of(windows: list[list[int]], length: int = LENGTH) -> dict[str, NDArray[np.int64]]:
    """Return the rows that best fit makes of each window's items, those of full items first, as planning has them."""
    rows, slots, lengths, of_window = [], [], [], []
    for number, some in enumerate(windows):
        num_full = some.count(length)
        if num_full:
            rows.append(np.array([num_full]))
            slots.append(np.ones(1, np.int64))
            lengths.append(np.array([length]))
            of_window.append(np.array([number]))
        rest = [size for size in some if size < length]
        packing = best_fit(np.bincount(np.array(rest, np.int64), minlength=1), length)
        starts = starts_of(packing.copies)
        rows.append(np.diff(packing.row_starts))
        slots.append(np.diff(starts[packing.entry_starts]))
        lengths.append(np.repeat(packing.lengths, packing.copies))
        of_window.append(np.full(packing.num_groups, number))
    return {
        "num_rows": np.concatenate(rows),
        "num_slots": np.concatenate(slots),
        "lengths": np.concatenate(lengths),
        "windows": np.concatenate(of_window),
    }


def exchanged(sections: dict[str, NDArray[np.int64]], length: int = LENGTH) -> Exchanged:
    return exchange(**sections, length=length)


def rows_of(sections: dict[str, NDArray[np.int64]], found: Exchanged) -> list[list[tuple[int, int]]]:
    """Return the (slot, row of its section) of each item of each row: the names of the items."""
    starts = starts_of(found.num_slots)
    rows: list[list[tuple[int, int]]] = []
    for section, num_rows in enumerate(found.num_rows.tolist()):
        part = slice(int(starts[section]), int(starts[section + 1]))
        items = list(zip(found.slots[part].tolist(), found.offsets[part].tolist()))
        rows += [[(slot, at + row) for slot, at in items] for row in range(num_rows)]
    return rows


@given(windows=st.lists(items, min_size=1, max_size=4), together=st.sampled_from([1, 1 << 20]))
def test_every_item_is_in_one_row_of_its_window_and_no_row_is_too_long(windows: list[list[int]], together: int) -> None:
    sections = sections_of(windows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange_module, "MOST_MIXED", together)
        found = exchanged(sections)
    rows = rows_of(sections, found)
    section_of = np.repeat(np.arange(len(sections["num_rows"])), sections["num_slots"])
    expected = [
        (slot, row) for slot, section in enumerate(section_of) for row in range(int(sections["num_rows"][section]))
    ]
    assert sorted(item for row in rows for item in row) == expected
    assert len(rows) == sections["num_rows"].sum()
    lengths, window_of = sections["lengths"], sections["windows"][section_of]
    in_windows = []
    for row in rows:
        assert row
        assert sum(int(lengths[slot]) for slot, _ in row) <= LENGTH
        assert len({int(window_of[slot]) for slot, _ in row}) == 1
        in_windows.append(int(window_of[row[0][0]]))
    assert in_windows == sorted(in_windows)
    full = [(slot, row) for slot, row in expected if lengths[slot] == LENGTH]
    assert [row[0] for row in rows if lengths[row[0][0]] == LENGTH] == full, "full rows keep their order"


@given(windows=st.lists(items, min_size=1, max_size=4))
def test_keys_that_do_not_fit_into_a_number_give_the_same_rows(windows: list[list[int]]) -> None:
    sections = sections_of(windows)
    found = exchanged(sections)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange_module, "_BITS", 0)
        slow = exchanged(sections)
    for name in Exchanged.__dataclass_fields__:
        assert getattr(found, name).tolist() == getattr(slow, name).tolist()


def test_nothing_is_nothing() -> None:
    nothing = np.zeros(0, np.int64)
    found = exchange(nothing, nothing, nothing, nothing, length=4)
    assert not len(found.num_rows)
    assert not len(found.slots)


def test_the_cost_does_not_grow_with_the_number_of_items() -> None:
    counts = np.arange(1, 40)
    sizes = []
    for times in (1000, 10**9):
        packing = best_fit(np.concatenate([[0], counts * times]), 64)
        starts = starts_of(packing.copies)
        found = exchange(
            np.diff(packing.row_starts),
            np.diff(starts[packing.entry_starts]),
            np.repeat(packing.lengths, packing.copies),
            np.zeros(packing.num_groups, np.int64),
            length=64,
        )
        sizes.append(len(found.slots))
    assert max(sizes) <= 2 * exchange_module.MOST_SLOTS


# ---------------------------------------------------------------- as mixed as by chance


def by_chance(lengths: NDArray[np.int64], length: int, rng: np.random.Generator) -> Rows:
    """Fill one row after the other with documents at random, out of those that still fit."""
    left, rows = rng.permutation(lengths), []
    while len(left):
        room, at, row = length, 0, []
        is_left = np.ones(len(left), np.bool_)
        while (fitting := np.flatnonzero(left[at:] <= room)).size:
            at += int(fitting[0])
            row.append(int(left[at]))
            room -= row[-1]
            is_left[at] = False
            at += 1
        rows.append(row)
        left = left[is_left]
    return rows


def by_best_fit(lengths: NDArray[np.int64], length: int) -> tuple[Rows, Rows]:
    """Return the lengths in all rows before they are mixed, and after."""
    sections = sections_of([lengths.tolist()], length)
    found = exchanged(sections, length)
    before = np.split(sections["lengths"], starts_of(sections["num_slots"])[1:-1])
    after = np.split(sections["lengths"][found.slots], starts_of(found.num_slots)[1:-1])
    return (
        [row.tolist() for row, num in zip(before, sections["num_rows"].tolist()) for _ in range(num)],
        [row.tolist() for row, num in zip(after, found.num_rows.tolist()) for _ in range(num)],
    )


def share_alike(rows: Rows) -> float:
    """Return in which share of rows of three items and more all have one length, but for one at most."""
    some = [row for row in rows if len(row) > 2]
    return sum(max(Counter(row).values()) >= len(row) - 1 for row in some) / len(some)


def share_of_equal_pairs(rows: Rows) -> float:
    """Return in which share of pairs of items of a row both have one length."""
    equal = sum(num * (num - 1) for row in rows for num in Counter(row).values())
    return equal / sum(len(row) * (len(row) - 1) for row in rows)


CORPORA: dict[str, Any] = {
    "log-normal": lambda rng, num: np.maximum(1, rng.lognormal(6, 1.2, num)).astype(np.int64) % 4096,
    "short": lambda rng, num: rng.integers(100, 400, num),
    "a third of a row": lambda rng, num: rng.integers(800, 1400, num),
    "two templates and others": lambda rng, num: np.concatenate(
        [rng.integers(600, 640, num // 3), rng.integers(1000, 1010, num // 3), rng.integers(1, 500, num // 3)]
    ),
}


@pytest.mark.parametrize("corpus", CORPORA)
@pytest.mark.parametrize("num_documents", [3000, 60_000])
def test_rows_of_equal_documents_are_no_more_frequent_than_by_chance(corpus: str, num_documents: int) -> None:
    rng = np.random.default_rng(7)
    lengths = CORPORA[corpus](rng, num_documents)
    lengths = lengths[lengths > 0]
    before, after = by_best_fit(lengths, 4096)
    chance = by_chance(lengths[rng.permutation(len(lengths))[:6000]], 4096, rng)
    num_rows = sum(len(row) > 2 for row in chance)
    for share in (share_alike, share_of_equal_pairs):
        expected = share(chance)
        # three standard deviations of a share of so many rows, and a little that is not mixed to the end
        bound = expected + 3 * (max(expected, 1 / num_rows) / num_rows) ** 0.5 + 0.003
        assert share(after) <= bound, share.__name__
    assert share_of_equal_pairs(before) > 2 * bound, "best fit alone would not pass"
    assert len(after) == len(before), "no padding was added"
