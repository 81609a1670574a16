"""Rows of a pack by number: the spans of documents that they hold, and the rows of a document.

Shapes: R rows that are asked for; S spans in them, of all rows together. L slots and C classes are those of the tables
(`pack_tables.py` explains sections, slots and classes).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from stoker.compose.packs.pack_tables import PackTables, StoredIntegers
from stoker.compose.packs.token_documents import Documents
from stoker.errors import DataError
from stoker.native import ArrayParts, RowMemory, SpanFinder
from stoker.plan.mixing import derived_key
from stoker.plan.packing import rotations, starts_of

Indices = NDArray[np.int64]
Cached = TypeVar("Cached")

MAX_CACHED_SLOTS = 1 << 18
"""Up to this many slots, `SLOT_COLUMNS` of all of them are computed once per epoch and kept, which is quicker: 12 MiB.
Beyond it, they are computed for the slots of each batch.
"""

MAX_CACHED_EPOCHS = 4

SLOT_COLUMNS = ("base", "step", "place", "count", "size", "piece")
"""What it takes to fill a slot: row `j` of the section gets item `(base + j * step) % count` of the slot's class, which
begins at `place` in `order`, has `count` items of `size` tokens, and begins at `piece` in `pieces`. The columns are the
fields of `struct slot` in native/spans.c.
"""
_BASE, _STEP, _PLACE, _COUNT, _SIZE, _PIECE = range(6)


class DocumentSpan(NamedTuple):
    """A part of one document in one row."""

    row: int
    document: int
    offset: int
    """Where in the document it begins, in tokens."""
    start: int
    """Its first column in the row."""
    stop: int
    """The column after its last."""

    @property
    def size(self) -> int:
        """Number of tokens."""
        return self.stop - self.start

    @property
    def columns(self) -> range:
        """The columns of the row that it takes."""
        return range(self.start, self.stop)


class RowSpans(NamedTuple):
    """The spans of some rows, row after row, each from its first column on."""

    row_starts: Indices
    """[R + 1]: row `r` has the spans from `row_starts[r]` to before `row_starts[r + 1]`."""
    documents: Indices
    """[S], as all below."""
    offsets: Indices
    """Where in its document each begins."""
    sizes: Indices
    begins: Indices
    """Where each begins among all tokens of the source."""
    has_next: NDArray[np.bool_]
    """Whether its document continues in another row, so that its last token has a label."""

    def listed(self, rows: list[int]) -> list[DocumentSpan]:
        """Return them one by one; `rows` are the numbers of the rows."""
        found = []
        bounds = self.row_starts.tolist()
        documents, offsets, sizes = self.documents.tolist(), self.offsets.tolist(), self.sizes.tolist()
        for row, first, last in zip(rows, bounds[:-1], bounds[1:]):
            column = 0
            for at in range(first, last):
                found.append(DocumentSpan(row, documents[at], offsets[at], column, column + sizes[at]))
                column += sizes[at]
        return found


class PackedRows:
    """Rows of a pack, of any epoch. Safe to use from threads."""

    def __init__(self, documents: Documents, *, length: int) -> None:
        self._documents, self._length = documents, length

    def spans(self, rows: Indices, epoch: int) -> RowSpans:
        """Return the spans of rows [R], all of which exist."""
        raise NotImplementedError

    def find(self, document: int, epoch: int) -> list[DocumentSpan]:
        """Return where a document is, from its beginning to its end."""
        raise NotImplementedError

    def placed(self, rows: Indices, epoch: int) -> tuple[RowSpans, NDArray[Any], Indices]:
        """Return the spans, memory that holds their tokens, checksums verified, and where in it each begins [S]."""
        return self._read(self.spans(rows, epoch))

    def write(self, rows: Indices, epoch: int, to: RowMemory, memory: NDArray[np.uint8]) -> bool:  # noqa: ARG002
        """Write rows into memory in one call; return False if they have to be filled from `placed` spans."""
        return False

    def _read(self, spans: RowSpans) -> tuple[RowSpans, NDArray[Any], Indices]:
        # with has_next, the token after the span is the label of its last one
        return spans, *self._documents.spans(spans.begins, spans.sizes + spans.has_next)


class BestFitRows(PackedRows):
    """Rows packed by best fit. `_spans_by_numpy` defines what they hold; C does the same where it can."""

    def __init__(
        self,
        documents: Documents,
        tables: PackTables,
        *,
        length: int,
        window: int | None,
        is_cut: bool,
        seed: int,
        renew: Callable[[], PackTables],
    ) -> None:
        super().__init__(documents, length=length)
        self._window, self._is_cut, self._seed, self._renew = window, is_cut, seed, renew
        self._tables = tables
        self._slots_of_epochs: dict[int, Indices] = {}
        self._finders: dict[int, tuple[SpanFinder, NDArray[Any]]] = {}
        self._counting = np.arange(4096)

    def spans(self, rows: Indices, epoch: int) -> RowSpans:
        """Return the spans of rows."""
        finder = self._finder(epoch)
        found = None if finder is None else finder[0](rows)
        return self._spans_by_numpy(rows, epoch) if found is None else RowSpans(*found[:6])

    def placed(self, rows: Indices, epoch: int) -> tuple[RowSpans, NDArray[Any], Indices]:
        """Return the spans, and where their tokens are."""
        finder = self._finder(epoch)
        found = None if finder is None else finder[0](rows)
        if finder is None or found is None:
            return self._read(self._spans_by_numpy(rows, epoch))
        return RowSpans(*found[:6]), finder[1], found.elements

    def write(self, rows: Indices, epoch: int, to: RowMemory, memory: NDArray[np.uint8]) -> bool:
        """Write rows into memory in one call, where C can."""
        finder = self._finder(epoch)
        return finder is not None and finder[0].write(rows, to, memory)

    # ------------------------------------------------------------ from rows to spans

    def _spans_by_numpy(self, rows: Indices, epoch: int) -> RowSpans:
        """Return the spans of rows [R], reading and verifying whatever was not read yet."""
        tables = self._tables
        # [R]: each row's section, the section's first slot, and its number of slots, which are the row's spans
        sections = tables.row_starts.searchsorted(rows, "right") - 1
        first_slots = tables.slot_starts.take(sections)
        num_spans_of_rows = tables.slot_starts.take(sections + 1) - first_slots
        row_starts = starts_of(num_spans_of_rows)
        num_spans = int(row_starts[-1])
        # [S]: the slot of each span: its row's first slot, plus which span of the row it is
        slots = (first_slots - row_starts[:-1]).repeat(num_spans_of_rows)
        slots += self._count_to(num_spans)
        known = self._slot_values(slots, epoch)  # [S, 6]
        # [S]: row j of a section takes item (base + j * step) % count of the slot's class
        places = (rows - tables.row_starts.take(sections)).repeat(num_spans_of_rows)
        places *= known[:, _STEP]
        places += known[:, _BASE]
        places %= known[:, _COUNT]
        places += known[:, _PLACE]
        documents = self._read_list("order", places)
        begins, document_sizes = self._documents.bounds(documents)
        sizes = known[:, _SIZE].copy()
        # An item is the end of its document, which is all of it where that fits into a row...
        offsets = document_sizes - sizes
        least = int(offsets.min()) if num_spans else 0
        has_next = np.zeros(num_spans, np.bool_)
        # ...except for full rows: these are piece 0, 1, ... of a long document, or, truncated, its beginning.
        full = (sizes == self._length).nonzero()[0]
        if full.size and self._is_cut:
            of_full = known[full]
            pieces = self._read_list("pieces", places[full] - of_full[:, _PLACE] + of_full[:, _PIECE])
            pieces *= self._length
            tokens_after = offsets[full] - pieces
            least = min(least, int(tokens_after.min()))
            has_next[full] = tokens_after > 0
            offsets[full] = pieces
        elif full.size:
            offsets[full] = 0
        # A plan of other documents would give wrong rows silently. In one of these documents, every item is the end of
        # a document whose size is that of its class, up to whole rows before it.
        if least < 0 or (offsets % self._length if self._is_cut else offsets).any():
            raise DataError(
                "the packing plan is not one of these documents: their lengths differ\n"
                "hint: remove the folder that holds the plan, .packs next to a store"
            )
        return RowSpans(row_starts, documents, offsets, sizes, begins + offsets, has_next)

    def _count_to(self, count: int) -> Indices:
        """Return 0, 1, ... [count], from an array that is kept."""
        if count > len(self._counting):
            self._counting = np.arange(2 * count)
        return self._counting[:count]

    def _slot_values(self, slots: Indices, epoch: int) -> Indices:
        """Return `SLOT_COLUMNS` [S, 6] of some slots [S] in an epoch."""
        table = self._slots_of_epoch(epoch)
        if table is None:
            return self._computed_slots(self._tables.slots.take(slots, 0), epoch)
        return table.take(slots, 0)

    def _slots_of_epoch(self, epoch: int) -> Indices | None:
        """Return `SLOT_COLUMNS` [L, 6] of all slots; None if there are too many."""
        table = self._slots_of_epochs.get(epoch)
        if table is None and len(self._tables.slots) <= MAX_CACHED_SLOTS:
            table = self._computed_slots(self._tables.slots, epoch)
            self._slots_of_epochs = _with_epoch(self._slots_of_epochs, epoch, table)
        return table

    def _computed_slots(self, slots: NDArray[Any], epoch: int) -> Indices:
        """Return `SLOT_COLUMNS` of rows of the table `slots`: [..., 3] (class, base, step) to [..., 6]."""
        slots = slots.astype(np.int64, copy=False)  # uint64 and int64 together would make float64
        of_class = self._tables.classes.take(slots[:, 0], 0)  # place, count, size, window, piece
        known = np.empty((len(slots), 6), np.int64)
        known[:, _BASE] = (slots[:, 1] + self._rotations(of_class, epoch)) % of_class[:, 1]
        known[:, _STEP] = slots[:, 2]
        known[:, _PLACE : _SIZE + 1] = of_class[:, :3]
        known[:, _PIECE] = of_class[:, 4]
        return known

    def _rotations(self, of_class: Indices, epoch: int) -> Indices:
        """Return by how much the items of classes are rotated in an epoch, so that other equally long ones meet."""
        shifts = rotations(of_class[:, 3], of_class[:, 2], of_class[:, 1], key=derived_key(self._seed, epoch))
        shifts[of_class[:, 2] == self._length] = 0  # full rows stay in the order of their documents
        return shifts

    def _read_list(self, name: str, places: Indices) -> Indices:
        """Return numbers of `order` or `pieces`, which may be on disk. If they are damaged there, plan again."""
        numbers: StoredIntegers = getattr(self._tables, name)
        try:
            return numbers.take(places).astype(np.int64)
        except DataError:
            self._plan_again()
            numbers = getattr(self._tables, name)
            return numbers.take(places).astype(np.int64)

    def _plan_again(self) -> None:
        self._tables, self._finders = self._renew(), {}

    def _finder(self, epoch: int) -> tuple[SpanFinder, NDArray[Any]] | None:
        """Return what looks spans up in C, and the memory of the tokens, after checking that no file changed.

        None unless all tables are in memory, or in mapped files, for good.
        """
        found = self._finders.get(epoch)
        if found is None:
            tables = self._tables
            order, pieces, values = (_parts_of(stored) for stored in (tables.order, tables.pieces, self._documents))
            offsets = _parts_of(self._documents, "offset_parts")
            if order is None or pieces is None or values is None or offsets is None:
                return None
            slots = self._slots_of_epoch(epoch)
            if slots is None:
                return None
            finder = SpanFinder(
                tables.row_starts,
                tables.slot_starts,
                slots,
                order=order,
                pieces=pieces,
                offsets=offsets,
                values=values,
                length=self._length,
                is_cut=self._is_cut,
            )
            found = finder, values.flat
            self._finders = _with_epoch(self._finders, epoch, found)
        _check_unchanged(self._documents)
        try:
            _check_unchanged(self._tables.order)
            _check_unchanged(self._tables.pieces)
        except DataError:  # as in `_read_list`
            self._plan_again()
            return None
        return found

    # ------------------------------------------------------------ from a document to its rows

    def find(self, document: int, epoch: int) -> list[DocumentSpan]:
        """Return where a document is: its full rows, then its end."""
        tables, length = self._tables, self._length
        size = int(self._documents.bounds(np.array([document]))[1][0])
        window = document // self._window if self._window else 0
        found = []
        num_full = size // length if self._is_cut else min(1, size // length)
        if num_full:
            number = self._class_number(window, length)
            section = self._sections_of(np.array([self._slots_of_class(number)[0]]))[0]
            row = self._rank_of(document, number) + int(tables.row_starts[section])
            found = [DocumentSpan(row + piece, document, piece * length, 0, length) for piece in range(num_full)]
        rest = size - num_full * length
        if not rest or (num_full and not self._is_cut):
            return found
        number = self._class_number(window, rest)
        of_class = tables.classes[[number]]
        shift = int(self._rotations(of_class, epoch)[0])
        rank = (self._rank_of(document, number) - shift) % int(of_class[0, 1])
        # of the slots that take from this class, the one with rank = base + j * step for a row j of its section
        slots = self._slots_of_class(number)
        sections = self._sections_of(slots)
        rows, remainders = np.divmod(rank - tables.slots[slots, 1].astype(np.int64), tables.slots[slots, 2].astype(int))
        num_rows = tables.row_starts[sections + 1] - tables.row_starts[sections]
        at = np.flatnonzero((remainders == 0) & (rows >= 0) & (rows < num_rows))[0]
        section, slot = int(sections[at]), int(slots[at])
        classes_before = tables.slots[int(tables.slot_starts[section]) : slot, 0]
        column = int(tables.classes[classes_before, 2].sum())
        row = int(tables.row_starts[section] + rows[at])
        found.append(DocumentSpan(row, document, size - rest, column, column + rest))
        return found

    def _class_number(self, window: int, length: int) -> int:
        """Return the number of the class of a window and length. Classes ascend by window."""
        windows = self._tables.classes[:, 3]
        first, last = (int(windows.searchsorted(window, side)) for side in ("left", "right"))
        return first + int(np.flatnonzero(self._tables.classes[first:last, 2] == length)[0])

    def _slots_of_class(self, number: int) -> Indices:
        return np.flatnonzero(self._tables.slots[:, 0] == number)

    def _sections_of(self, slots: Indices) -> Indices:
        return self._tables.slot_starts.searchsorted(slots, "right") - 1

    def _rank_of(self, document: int, number: int) -> int:
        """Return the first place of a document within a class, in which documents ascend."""
        start, count = self._tables.classes[number, :2].tolist()
        read = self._read_list
        return bisect_left(range(count), document, key=lambda rank: int(read("order", np.array([start + rank]))[0]))


class ConcatRows(PackedRows):
    """Rows by concatenation: row `i` has the tokens from `i * length` on, of all documents one after the other."""

    def spans(self, rows: Indices, epoch: int) -> RowSpans:  # noqa: ARG002
        """Return the spans of rows."""
        begins = rows * self._length  # [R]
        ends = np.minimum(begins + self._length, self._documents.num_values)
        found = self._documents.documents_at(np.concatenate((begins, ends - 1)))
        first, last = found[: len(rows)], found[len(rows) :]
        # [S]: all documents from the one of each row's first token to that of its last
        nums = last - first + 1
        row_starts = starts_of(nums)
        documents = (first - row_starts[:-1]).repeat(nums)
        documents += np.arange(len(documents))
        document_begins, document_sizes = self._documents.bounds(documents)
        document_ends = document_begins + document_sizes
        here = np.maximum(document_begins, begins.repeat(nums))
        sizes = np.minimum(document_ends, ends.repeat(nums)) - here
        has_tokens = sizes > 0
        if not has_tokens.all():  # leave out empty documents
            row_starts[1:] = has_tokens.cumsum()[row_starts[1:] - 1]
            documents, document_begins, document_ends, here, sizes = (
                part[has_tokens] for part in (documents, document_begins, document_ends, here, sizes)
            )
        return RowSpans(row_starts, documents, here - document_begins, sizes, here, here + sizes < document_ends)

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


def _parts_of(numbers: Any, method: str = "parts") -> ArrayParts | None:
    """Return where numbers lie in memory, if they are an array or have a method that says so."""
    if type(numbers) is np.ndarray:
        return ArrayParts.of(numbers)
    parts: Callable[[], ArrayParts | None] | None = getattr(numbers, method, None)
    return None if parts is None else parts()


def _check_unchanged(numbers: Any) -> None:
    """Raise `StaleSource` if the mapped files that hold these numbers have changed."""
    check: Callable[[], None] | None = getattr(numbers, "check", None)
    if check is not None:
        check()


def _with_epoch(cached: dict[int, Cached], epoch: int, new: Cached) -> dict[int, Cached]:
    """Return a new dict with this epoch and the latest before it: other threads may be reading the old one."""
    return {**dict(list(cached.items())[1 - MAX_CACHED_EPOCHS :]), epoch: new}
