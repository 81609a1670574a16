"""Rows by number: which spans of which documents are in them, and where a document went."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from stoker.compose.packs.pack_tables import PackFacts, PackTables, StoredIntegers
from stoker.compose.packs.row_spans import DocumentSpan, RowSpans
from stoker.compose.packs.token_documents import Documents
from stoker.errors import DataError
from stoker.native import ArrayParts, RowMemory, SpanFinder
from stoker.plan.mixing import derived_key
from stoker.plan.packing import rotations

Indices = NDArray[np.int64]
Kept = TypeVar("Kept")

MOST_KEPT = 1 << 18
"""Slots for which all that is known of them in an epoch is kept together, for a quicker look: 12 MiB. Where there are
more, it is put together for those that are asked for.
"""

_EPOCHS_KEPT = 4


class PackedRows(Protocol):
    """Packed rows, of any epoch. Safe to use from threads."""

    facts: PackFacts

    def spans(self, rows: Indices, epoch: int) -> RowSpans:
        """Return what is in some rows, which are there."""
        ...

    def placed(self, rows: Indices, epoch: int) -> tuple[RowSpans, NDArray[Any], Indices]:
        """Return the same, memory in which all their tokens are, checked, and where in it each span begins."""
        ...

    def write(self, rows: Indices, epoch: int, sheet: RowMemory, memory: NDArray[np.uint8]) -> bool:
        """Write rows into memory in one go; False if they have to be filled from `placed` spans."""
        ...

    def find(self, document: int, epoch: int) -> list[DocumentSpan]:
        """Return where a document is, from its beginning to its end."""
        ...


class BestFitRows:
    """Rows by best fit: see `Layout` for the arithmetic."""

    def __init__(
        self,
        documents: Documents,
        layout: PackTables,
        *,
        length: int,
        window: int | None,
        is_cut: bool,
        seed: int,
        renewed: Callable[[], PackTables],
    ) -> None:
        self._documents, self._length, self._window, self._is_cut = documents, length, window, is_cut
        self._seed, self._renewed = seed, renewed
        self._layout, self.facts = layout, layout.facts
        self._tables: dict[int, Indices] = {}
        self._finders: dict[int, tuple[SpanFinder, NDArray[Any]]] = {}
        self._numbers = np.arange(4096)

    def _known(self, slots: Indices, epoch: int) -> Indices:
        """Return [slots, 6]: base, step, and of the class its first place, count and length, and its first piece.

        The base is the epoch's: moved on by the class's rotation.
        """
        table = self._table(epoch)
        if table is None:
            return self._put_together(self._layout.slots.take(slots, 0), epoch)
        return table.take(slots, 0)

    def _table(self, epoch: int) -> Indices | None:
        """Return the same for all slots; None if they are too many."""
        table = self._tables.get(epoch)
        if table is None and len(self._layout.slots) <= MOST_KEPT:
            table = self._put_together(self._layout.slots, epoch)
            self._tables = _with(self._tables, epoch, table)
        return table

    def _finder(self, epoch: int) -> tuple[SpanFinder, NDArray[Any]] | None:
        """Return what looks spans up in C, and the memory of the tokens. Files that it reads are checked now.

        None unless all tables are in memory, or in files that are mapped, and will stay there.
        """
        found = self._finders.get(epoch)
        if found is None:
            layout = self._layout
            lists = (layout.order, layout.pieces, self._documents)
            order, pieces, values = (_parts(numbers, "parts") for numbers in lists)
            offsets = _parts(self._documents, "offset_parts")
            if order is None or pieces is None or values is None or offsets is None:
                return None
            table = self._table(epoch)
            if table is None:
                return None
            finder = SpanFinder(
                layout.row_starts,
                layout.slot_starts,
                table,
                order=order,
                pieces=pieces,
                offsets=offsets,
                values=values,
                length=self._length,
                is_cut=self._is_cut,
            )
            found = finder, values.flat
            self._finders = _with(self._finders, epoch, found)
        _check(self._documents)
        try:
            _check(self._layout.order)
            _check(self._layout.pieces)
        except DataError:  # as in `_taken`
            self._layout, self._finders = self._renewed(), {}
            return None
        return found

    def _put_together(self, slots: NDArray[Any], epoch: int) -> Indices:
        slots = slots.astype(np.int64, copy=False)  # unsigned numbers of 64 bits and signed ones would make floats
        of_class = self._layout.classes.take(slots[:, 0], 0)
        known = np.empty((len(slots), 6), np.int64)
        known[:, 0] = (slots[:, 1] + self._rotations(of_class, epoch)) % of_class[:, 1]
        known[:, 1] = slots[:, 2]
        known[:, 2:5] = of_class[:, :3]
        known[:, 5] = of_class[:, 4]
        return known

    def _rotations(self, of_class: Indices, epoch: int) -> Indices:
        """Return by how much the ranks in some classes are moved on in an epoch."""
        shifts = rotations(of_class[:, 3], of_class[:, 2], of_class[:, 1], key=derived_key(self._seed, epoch))
        shifts[of_class[:, 2] == self._length] = 0  # full rows are in the order of their documents
        return shifts

    def _taken(self, name: str, places: Indices) -> Indices:
        """Return numbers that may be on disk. If they are damaged there, they are planned anew."""
        numbers: StoredIntegers = getattr(self._layout, name)
        try:
            return numbers.take(places).astype(np.int64)
        except DataError:
            self._layout, self._finders = self._renewed(), {}
            numbers = getattr(self._layout, name)
            return numbers.take(places).astype(np.int64)

    def spans(self, rows: Indices, epoch: int) -> RowSpans:
        """Return what is in some rows."""
        finder = self._finder(epoch)
        found = None if finder is None else finder[0](rows)
        return self._looked_up(rows, epoch) if found is None else RowSpans(*found[:6])

    def placed(self, rows: Indices, epoch: int) -> tuple[RowSpans, NDArray[Any], Indices]:
        """Return what is in some rows, and where it lies."""
        finder = self._finder(epoch)
        found = None if finder is None else finder[0](rows)
        if finder is None or found is None:
            return _placed(self._documents, self._looked_up(rows, epoch))
        return RowSpans(*found[:6]), finder[1], found.elements

    def write(self, rows: Indices, epoch: int, sheet: RowMemory, memory: NDArray[np.uint8]) -> bool:
        """Write rows into memory in one go, where that can be."""
        finder = self._finder(epoch)
        return finder is not None and finder[0].write(rows, sheet, memory)

    def _looked_up(self, rows: Indices, epoch: int) -> RowSpans:
        """Return what is in some rows, by NumPy: the definition of it. What is not seen yet is checked now."""
        layout = self._layout
        sections = layout.row_starts.searchsorted(rows, "right")
        slot_ends = layout.slot_starts.take(sections)
        sections -= 1
        firsts = layout.slot_starts.take(sections)
        nums = slot_ends - firsts
        starts = np.zeros(len(rows) + 1, np.int64)
        nums.cumsum(out=starts[1:])
        num_spans = int(starts[-1])
        counted = self._numbers
        if num_spans > len(counted):
            self._numbers = counted = np.arange(2 * num_spans)
        firsts -= starts[:-1]
        numbers = firsts.repeat(nums)
        numbers += counted[:num_spans]
        known = self._known(numbers, epoch)
        places = (rows - layout.row_starts.take(sections)).repeat(nums)
        places *= known[:, 1]
        places += known[:, 0]
        places %= known[:, 3]
        places += known[:, 2]
        documents = self._taken("order", places)
        begins, whole = self._documents.bounds(documents)
        sizes = known[:, 4].copy()
        offsets = whole - sizes
        least = int(offsets.min()) if num_spans else 0
        has_next = np.zeros(num_spans, np.bool_)
        full = (sizes == self._length).nonzero()[0]
        if full.size:
            if self._is_cut:
                of_full = known[full]
                pieces = self._taken("pieces", places[full] - of_full[:, 2] + of_full[:, 5])
                pieces *= self._length
                ahead = offsets[full] - pieces
                least = min(least, int(ahead.min()))
                has_next[full] = ahead > 0
                offsets[full] = pieces
            else:
                offsets[full] = 0
        # A row that is not the plan's would be wrong without a word: a class has the ends of documents of its length.
        if least < 0 or (offsets % self._length if self._is_cut else offsets).any():
            raise DataError(
                "the plan of packed rows is not one of these documents: their lengths are others\n"
                "hint: remove the folder that the plan is kept in, .packs beside a store"
            )
        return RowSpans(starts, documents, offsets, sizes, begins + offsets, has_next)

    def find(self, document: int, epoch: int) -> list[DocumentSpan]:
        """Return where a document is."""
        layout, length = self._layout, self._length
        size = int(self._documents.bounds(np.array([document]))[1][0])
        window = document // self._window if self._window else 0
        found = []
        num_full = size // length if self._is_cut else min(1, size // length)
        if num_full:
            number = self._class(window, length)
            section = self._sections(np.array([self._slots_of(number)[0]]))[0]
            row = self._rank(number, document) + int(layout.row_starts[section])
            found = [DocumentSpan(row + piece, document, piece * length, 0, length) for piece in range(num_full)]
        rest = size - num_full * length
        if not rest or (num_full and not self._is_cut):
            return found
        number = self._class(window, rest)
        of_class = layout.classes[[number]]
        shift = int(self._rotations(of_class, epoch)[0])
        rank = (self._rank(number, document) - shift) % int(of_class[0, 1])
        slots = self._slots_of(number)
        sections = self._sections(slots)
        ahead = rank - layout.slots[slots, 1].astype(np.int64)
        rows, beside = np.divmod(ahead, layout.slots[slots, 2].astype(np.int64))
        num_rows = layout.row_starts[sections + 1] - layout.row_starts[sections]
        at = np.flatnonzero((beside == 0) & (rows >= 0) & (rows < num_rows))[0]
        section, slot = int(sections[at]), int(slots[at])
        before = layout.slots[int(layout.slot_starts[section]) : slot, 0]
        column = int(layout.classes[before, 2].sum())
        row = int(layout.row_starts[section] + rows[at])
        found.append(DocumentSpan(row, document, size - rest, column, column + rest))
        return found

    def _class(self, window: int, length: int) -> int:
        """Return the number of a class. Classes ascend by window."""
        windows = self._layout.classes[:, 3]
        first, last = (int(windows.searchsorted(window, side)) for side in ("left", "right"))
        return first + int(np.flatnonzero(self._layout.classes[first:last, 2] == length)[0])

    def _slots_of(self, number: int) -> Indices:
        """Return the slots that are filled from a class."""
        return np.flatnonzero(self._layout.slots[:, 0] == number)

    def _sections(self, slots: Indices) -> Indices:
        return self._layout.slot_starts.searchsorted(slots, "right") - 1

    def _rank(self, number: int, document: int) -> int:
        """Return where a document first is in a class, in which they ascend."""
        start, count = self._layout.classes[number, :2].tolist()
        taken = self._taken
        return bisect_left(range(count), document, key=lambda rank: int(taken("order", np.array([start + rank]))[0]))


class ConcatRows:
    """Rows by concatenation: row `i` has the tokens from `i * length` on, of all documents one after the other."""

    def __init__(self, documents: Documents, facts: PackFacts, *, length: int) -> None:
        self._documents, self.facts, self._length = documents, facts, length

    def spans(self, rows: Indices, epoch: int) -> RowSpans:  # noqa: ARG002
        """Return what is in some rows."""
        begins = rows * self._length
        ends = np.minimum(begins + self._length, self._documents.num_values)
        found = self._documents.documents_at(np.concatenate((begins, ends - 1)))
        first, last = found[: len(rows)], found[len(rows) :]
        nums = last - first + 1
        starts = np.zeros(len(rows) + 1, np.int64)
        nums.cumsum(out=starts[1:])
        documents = (first - starts[:-1]).repeat(nums)
        documents += np.arange(len(documents))
        document_begins, whole = self._documents.bounds(documents)
        document_ends = document_begins + whole
        here = np.maximum(document_begins, begins.repeat(nums))
        sizes = np.minimum(document_ends, ends.repeat(nums)) - here
        is_there = sizes > 0
        if not is_there.all():  # documents without tokens
            starts[1:] = is_there.cumsum()[starts[1:] - 1]
            documents, document_begins, document_ends = (
                part[is_there] for part in (documents, document_begins, document_ends)
            )
            here, sizes = here[is_there], sizes[is_there]
        return RowSpans(starts, documents, here - document_begins, sizes, here, here + sizes < document_ends)

    def placed(self, rows: Indices, epoch: int) -> tuple[RowSpans, NDArray[Any], Indices]:
        """Return what is in some rows, and where it lies."""
        return _placed(self._documents, self.spans(rows, epoch))

    def write(self, rows: Indices, epoch: int, sheet: RowMemory, memory: NDArray[np.uint8]) -> bool:  # noqa: ARG002
        """Leave it to `placed`."""
        return False

    def find(self, document: int, epoch: int) -> list[DocumentSpan]:  # noqa: ARG002
        """Return where a document is."""
        begins, sizes = self._documents.bounds(np.array([document]))
        begin, end = int(begins[0]), int(begins[0] + sizes[0])
        found, at = [], begin
        while at < end:
            row, column = divmod(at, self._length)
            stop = min(column + end - at, self._length)
            found.append(DocumentSpan(row, document, at - begin, column, stop))
            at += stop - column
        return found


def _placed(documents: Documents, spans: RowSpans) -> tuple[RowSpans, NDArray[Any], Indices]:
    return spans, *documents.spans(spans.begins, spans.sizes + spans.has_next)


def _parts(numbers: Any, name: str) -> ArrayParts | None:
    """Return where numbers lie that are in memory, or say so themselves."""
    if type(numbers) is np.ndarray:
        return ArrayParts.of(numbers)
    parts: Callable[[], ArrayParts | None] | None = getattr(numbers, name, None)
    return None if parts is None else parts()


def _check(numbers: Any) -> None:
    """Let numbers that are in mapped files see whether these have changed."""
    check: Callable[[], None] | None = getattr(numbers, "check", None)
    if check is not None:
        check()


def _with(kept: dict[int, Kept], epoch: int, new: Kept) -> dict[int, Kept]:
    """Return what is kept for epochs, as another table: another thread may be looking."""
    return {**dict(list(kept.items())[1 - _EPOCHS_KEPT :]), epoch: new}
