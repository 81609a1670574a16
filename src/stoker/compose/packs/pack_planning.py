"""Plan packed rows: from the lengths of documents to the tables of `pack_tables.py`, in bounded memory.

Shapes: D documents of one part of the corpus; R rows; K groups or sections of equal rows; L slots; C classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.compose.packs.pack_tables import PackFacts, PackTables
from stoker.errors import ArgumentError
from stoker.plan.exchange import exchange
from stoker.plan.packing import Packing, best_fit, starts_of

Indices = NDArray[np.int64]

MAX_SORTED = 1 << 22
"""Documents that are sorted at a time: sorting takes some 20 bytes for each."""


def plan_best_fit(
    lengths: Iterable[NDArray[np.integer[Any]]], *, length: int, window: int | None, long: str
) -> PackTables:
    """Plan rows of `length` by best fit for documents of these lengths, given in parts.

    Takes about 6 bytes per document, of which 4 stay. A pure function of its arguments.
    """
    planner = _PackPlanner(length, is_cut=long != "truncate", is_refused=long == "error")
    for parts in _windows(lengths, window):
        planner.add_window(parts)
    return planner.tables()


def _windows(lengths: Iterable[NDArray[Any]], window: int | None) -> Iterator[Iterator[Indices]]:
    """Yield the windows, each as its parts, which must be read before the next window."""
    source = (
        part[at : at + MAX_SORTED]
        for part in (np.asarray(part).astype(np.int64, copy=False) for part in lengths)
        for at in range(0, len(part), MAX_SORTED)
    )
    if window is None:
        yield source
        return
    rest: Indices | None = next(source, None)
    while rest is not None:

        def parts() -> Iterator[Indices]:
            nonlocal rest
            wanted = window
            while wanted and rest is not None:
                part, rest = rest[:wanted], rest[wanted:]
                wanted -= len(part)
                yield part
                if not len(rest):
                    rest = next(source, None)

        yield parts()


class _PackPlanner:
    """Tables that grow window by window: each window adds its full rows, then the rows that best fit puts together."""

    def __init__(self, length: int, *, is_cut: bool, is_refused: bool) -> None:
        self._length, self._is_cut, self._is_refused = length, is_cut, is_refused
        self._row_counts: list[Indices] = []
        self._slot_counts: list[Indices] = []
        self._windows: list[Indices] = []
        self._slots: list[NDArray[Any]] = []
        self._classes: list[Indices] = []
        self._order: list[NDArray[Any]] = []
        self._pieces: list[NDArray[Any]] = []
        self._num_classes = self._num_ordered = self._num_pieces = self._num_windows = 0
        self._num_documents = self._num_empty = self._num_tokens = self._num_cut = self._num_truncated = 0
        self._num_spans = 0

    def add_window(self, parts: Iterable[Indices]) -> None:
        """Plan one window of documents, given in parts [D]."""
        first = self._num_documents
        length = self._length
        key = np.uint16 if length <= 1 << 16 else np.uint32 if length <= 1 << 32 else np.uint64
        keys: list[NDArray[Any]] = []
        """[D] of each part: the length of each document's item, which is below that of a row; 0 without one."""
        counts = np.zeros(1, np.int64)
        full: list[tuple[Indices, Indices]] = []
        for part in parts:
            rest, longs = self._cut(part)
            keys.append(rest.astype(key))
            some = np.bincount(rest)
            if len(some) > len(counts):
                counts, some = some, counts
            counts[: len(some)] += some
            if longs.size:
                full.append((longs + self._num_documents, part[longs]))
            self._num_documents += len(part)
        self._add_full(full)
        counts[0] = 0
        packing = best_fit(counts, length)
        self._add_groups(packing, counts)
        self._add_order(keys, counts, first)
        self._num_windows += 1

    def _cut(self, part: Indices) -> tuple[Indices, Indices]:
        """Return the lengths of the documents' items [D], and the indices of documents that make full rows."""
        length = self._length
        self._num_tokens += int(part.sum())
        self._num_empty += len(part) - int(np.count_nonzero(part))
        longs = np.flatnonzero(part >= length)
        if not longs.size:
            return part, longs
        sizes = part[longs]
        if self._is_refused and int(sizes.max()) > length:
            at = int(longs[np.flatnonzero(sizes > length)[0]])
            raise ArgumentError(
                f"document {self._num_documents + at} has {int(part[at])} tokens, and a row {length}",
                hint="long='split' cuts such documents, long='truncate' takes their beginning",
            )
        self._num_cut += int(np.count_nonzero(sizes > length))
        rest = part.copy()
        if self._is_cut:
            rest[longs] = sizes % length
        else:
            rest[longs] = 0
            truncated = int(sizes.sum()) - length * len(sizes)
            self._num_tokens -= truncated
            self._num_truncated += truncated
        return rest, longs

    def _add_full(self, full: list[tuple[Indices, Indices]]) -> None:
        """Add the full rows of a window, documents ascending: one section of one slot, and its class."""
        if not full:
            return
        num_rows = 0
        for documents, sizes in full:
            nums = sizes // self._length if self._is_cut else np.ones_like(sizes)
            starts = starts_of(nums)
            self._order.append(_small(np.repeat(documents, nums)))
            self._pieces.append(_small(np.arange(int(starts[-1])) - np.repeat(starts[:-1], nums)))
            num_rows += int(starts[-1])
        self._row_counts.append(np.array([num_rows]))
        self._slot_counts.append(np.ones(1, np.int64))
        self._windows.append(np.array([self._num_windows]))
        self._slots.append(_small(np.array([[self._num_classes, 0, 1]])))
        self._classes.append(
            np.array([[self._num_ordered, num_rows, self._length, self._num_windows, self._num_pieces]], np.int64)
        )
        self._num_classes += 1
        self._num_ordered += num_rows
        self._num_pieces += num_rows
        self._num_spans += num_rows

    def _add_groups(self, packing: Packing, counts: Indices) -> None:
        """Add the rows that best fit puts together in a window, and the classes that they take from."""
        if not packing.num_rows:
            return
        sizes = np.flatnonzero(counts)
        nums = counts[sizes]
        class_starts = starts_of(nums)
        classes = np.zeros((len(sizes), 5), np.int64)
        classes[:, 0] = class_starts[:-1] + self._num_ordered
        classes[:, 1], classes[:, 2], classes[:, 3] = nums, sizes, self._num_windows
        numbers = np.zeros(len(counts), np.int64)
        numbers[sizes] = np.arange(len(sizes)) + self._num_classes
        # an entry that takes `copies` items per row becomes as many slots: copy c has base rank + c, and step copies
        copies = packing.copies
        starts = starts_of(copies)
        slots = np.empty((int(starts[-1]), 3), np.int64)
        slots[:, 0] = np.repeat(numbers[packing.lengths], copies)
        slots[:, 1] = np.repeat(packing.ranks - starts[:-1], copies) + np.arange(len(slots))
        slots[:, 2] = np.repeat(copies, copies)
        num_slots = np.diff(starts[packing.entry_starts])
        num_rows = np.diff(packing.row_starts)
        self._row_counts.append(num_rows)
        self._slot_counts.append(num_slots)
        self._windows.append(np.full(len(num_rows), self._num_windows))
        self._slots.append(_small(slots))
        self._classes.append(classes)
        self._num_classes += len(sizes)
        self._num_ordered += int(class_starts[-1])
        self._num_spans += int(num_rows @ num_slots)

    def _add_order(self, keys: list[NDArray[Any]], counts: Indices, first: int) -> None:
        """Add the documents of a window to `order`, sorted by the length of their items and then by their number.

        A counting sort: each part is sorted by itself, and the counts say where the documents of each length go.
        """
        at = starts_of(counts)[:-1]
        """Where the next document of each length goes."""
        num_last = first + sum(map(len, keys))
        order = np.empty(int(counts.sum()), np.uint32 if num_last <= 1 << 32 else np.uint64)
        for position, part in enumerate(keys):
            keys[position] = part[:0]  # free it: it is as large as the corpus
            sorted_numbers = np.argsort(part, kind="stable")  # a radix sort for numbers of 16 bits
            some = np.bincount(part)
            num_without = int(some[0])
            some[0] = 0
            found = sorted_numbers[num_without:]
            if len(found) == len(order):  # the only part: its order is the result
                np.add(found, first, out=order, casting="unsafe")
            else:
                places = np.repeat(at[: len(some)] - starts_of(some)[:-1], some)
                places += np.arange(len(places))
                found += first
                order[places] = found
                at[: len(some)] += some
            first += len(part)
        self._order.append(order)

    def tables(self) -> PackTables:
        """Return the tables, after `exchange` has mixed the lengths within rows."""
        slots = _joined(self._slots, (3,))
        classes = np.concatenate([np.zeros((0, 5), np.int64), *self._classes])
        lengths = classes[:, 2].take(slots[:, 0])
        mixed = exchange(
            _concatenated(self._row_counts),
            _concatenated(self._slot_counts),
            lengths,
            _concatenated(self._windows),
            length=self._length,
        )
        lengths = lengths.take(mixed.slots)
        slots = slots.take(mixed.slots, 0)
        slots[:, 1] += (mixed.offsets * slots[:, 2]).astype(slots.dtype)
        slot_starts = starts_of(mixed.num_slots)
        padding = self._length - np.diff(starts_of(lengths)[slot_starts])
        facts = PackFacts(
            num_rows=int(mixed.num_rows.sum()),
            num_documents=self._num_documents,
            num_empty=self._num_empty,
            num_tokens=self._num_tokens,
            num_spans=self._num_spans,
            num_cut=self._num_cut,
            num_truncated=self._num_truncated,
            min_documents=int(mixed.num_slots.min(initial=1 << 62)) if self._num_spans else 0,
            most_documents=int(mixed.num_slots.max(initial=0)),
            max_documents=int((mixed.num_slots + (padding > 0)).max(initial=0)),
            max_seqlen=int(max(lengths.max(initial=0), padding.max(initial=0))),
        )
        return PackTables(
            facts=facts,
            row_starts=starts_of(mixed.num_rows),
            slot_starts=slot_starts,
            slots=slots,
            classes=classes,
            order=_joined(self._order),
            pieces=_joined(self._pieces),
        )


def _concatenated(parts: list[Indices]) -> Indices:
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _small(numbers: Indices) -> NDArray[Any]:
    """Return numbers of at least 0 in 32 bits, if they fit."""
    return numbers.astype(np.uint32 if not numbers.size or int(numbers.max()) < 1 << 32 else np.uint64)


def _joined(parts: list[NDArray[Any]], shape: tuple[int, ...] = ()) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros((0, *shape), np.uint32), *parts])


def concat_facts(lengths: Iterable[NDArray[np.integer[Any]]], *, length: int) -> PackFacts:
    """Return the counts of rows by concatenation: documents one after the other, cut where a row ends."""
    num_documents = num_empty = num_cut = begin = longest = 0
    row, in_row = 0, 1
    """The row being filled, and its spans so far. What the row before leaves over, if only nothing, counts as one."""
    fewest, most, num_inside = 1 << 62, 0, 0
    for part in lengths:
        part = np.asarray(part).astype(np.int64, copy=False)
        num_documents += len(part)
        sizes = part[part > 0]
        num_empty += len(part) - len(sizes)
        if not sizes.size:
            continue
        begins = starts_of(sizes) + begin
        begin, longest = int(begins[-1]), max(longest, int(sizes.max()))
        rows = begins // length
        num_cut += int(np.count_nonzero(rows[:-1] < (begins[1:] - 1) // length))
        inside = rows[:-1][begins[:-1] % length > 0]
        num_inside += len(inside)
        # `inside` has the row of each span that begins within one; its runs of equal numbers give the spans of each row
        changes = np.flatnonzero(np.diff(inside)) + 1
        firsts = np.concatenate(([0], changes)) if inside.size else changes
        for_row = inside[firsts]
        counts = np.diff(np.append(firsts, len(inside)))
        if for_row.size and int(for_row[0]) == row:
            in_row += int(counts[0])
            for_row, counts = for_row[1:], counts[1:]
        now = int(rows[-1])
        if now > row:
            # every row before `now` is complete; rows in which no span begins have one
            ends_here = counts[for_row < now]
            complete = np.append(ends_here, in_row - 1) + 1
            most = max(most, int(complete.max()))
            num_others = now - row - len(complete)
            fewest = min(fewest, int(complete.min()), 1 if num_others else 1 << 62)
            in_row = 1 + int(counts[for_row == now].sum())
            row = now
    num_rows = -(-begin // length)
    padding = num_rows * length - begin
    max_documents = most
    if padding:
        most, fewest = max(most, in_row), min(fewest, in_row)
        max_documents = max(max_documents, in_row + 1)
    return PackFacts(
        num_rows=num_rows,
        num_documents=num_documents,
        num_empty=num_empty,
        num_tokens=begin,
        num_spans=num_rows + num_inside,
        num_cut=num_cut,
        num_truncated=0,
        min_documents=fewest if num_rows else 0,
        most_documents=most,
        max_documents=max(max_documents, most),
        max_seqlen=max(min(longest, length), padding),
    )
