"""Look up the spans of packed rows in one pass: the arithmetic of `compose/packs/pack_tables.py`, in C."""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError
from stoker.native.arrays import INT64, SOURCES, TARGETS, address, inputs, is_readable
from stoker.native.faults import NO_ROOM
from stoker.native.library import LAYOUTS, library
from stoker.native.token_rows import LONGEST, bytes_for

Indices = NDArray[np.int64]

_TABLES = Struct("PPqPqqq" + 4 * "PqqPPqPq")
_FILLING = Struct(LAYOUTS["fill_rows"])
_NUMBERS = (np.dtype(np.uint32), np.dtype(np.uint64), INT64)


MOST_ROOM = 1 << 16
"""Spans for which there is room at the first attempt."""


class ArrayParts(NamedTuple):
    """Numbers one after the other, in parts: number `i` of part `p` is `flat[elements[p] + i - starts[p]]`."""

    flat: NDArray[Any]
    starts: Indices
    """The first number of each part, and how many there are in all."""
    elements: Indices
    seen: NDArray[np.bool_] | None = None
    """Of each block of `flat`, `1 << shift` bytes, whether it may be read; None if all may."""
    shift: int = 0

    @classmethod
    def of(cls, flat: NDArray[Any], count: int | None = None) -> ArrayParts:
        """Return an array, or the first of it, as a single part."""
        return cls(flat, np.array([0, len(flat) if count is None else count]), np.zeros(1, np.int64))


class FoundSpans(NamedTuple):
    """The spans of some rows: see `compose/packs/row_spans.py`."""

    row_starts: Indices
    documents: Indices
    offsets: Indices
    sizes: Indices
    begins: Indices
    has_next: NDArray[np.bool_]
    elements: Indices
    """Where in the memory of the documents' values each begins. All of it was seen."""


class RowMemory:
    """How the arrays of some rows lie in one piece of memory: `places` tells how many bytes are before each.

    `ArgumentError` if they do not fit into `num_bytes`.
    """

    def __init__(
        self,
        places: Mapping[str, int],
        *,
        num_bytes: int,
        shape: tuple[int, int],
        width: int,
        source: np.dtype[Any],
        dtype: np.dtype[Any],
        pad: int,
        ignored: int,
    ) -> None:
        num_rows, length = shape
        self.num_rows, self.num_bytes, self.source = num_rows, num_bytes, source
        sizes = dict.fromkeys(("tokens", "labels"), num_rows * length * dtype.itemsize)
        sizes |= dict.fromkeys(("positions", "document_ids"), num_rows * length * 4)
        sizes["cu_seqlens"] = num_rows * width * 4
        if any(places[name] < 0 or places[name] % 8 or places[name] + size > num_bytes for name, size in sizes.items()):
            raise ArgumentError(
                "the arrays do not lie in the memory", hint="places count bytes, and are multiples of 8"
            )
        self.is_fit = source in SOURCES and dtype in TARGETS and 0 < length <= LONGEST
        if not self.is_fit:
            return
        for name, number in (("pad", pad), ("ignored", ignored)):
            bytes_for(name, number, dtype)
        self._rows = np.arange(num_rows)
        tokens, labels, positions, documents, borders = (places[name] for name in sizes)
        filling = _FILLING.pack(
            *(0, 0, SOURCES[source], 0, 0, 0, 0, 0, address(self._rows), num_rows, num_rows, length),
            *(tokens, dtype.itemsize, pad, labels, dtype.itemsize, ignored, positions, documents, borders, width),
        )
        self._filling = np.frombuffer(filling, np.uint8)
        self.address = address(self._filling)


class SpanFinder:
    """Looks up the spans of rows by best fit, in one epoch. Safe to use from threads, and after a fork."""

    def __init__(
        self,
        row_starts: Indices,
        slot_starts: Indices,
        slots: Indices,
        *,
        order: ArrayParts,
        pieces: ArrayParts,
        offsets: ArrayParts,
        values: ArrayParts,
        length: int,
        is_cut: bool,
    ) -> None:
        """Take the tables: `slots` are [slots, 6] as `FittedRows` puts them together.

        `offsets` has a part for each one of `values`, in which the documents' begins are counted from 0, and which ends
        with one number more than there are documents.
        """
        row_starts, slot_starts = inputs("row_starts", row_starts), inputs("slot_starts", slot_starts)
        slots = inputs("slots", slots.reshape(-1))
        packed: list[int] = []
        kept: list[Any] = [row_starts, slot_starts, slots]
        self._is_fit = len(row_starts) == len(slot_starts) > 1 and length > 0
        for parts in (order, pieces, offsets, values):
            flat, seen = parts.flat, parts.seen
            starts, elements = inputs("starts", parts.starts), inputs("elements", parts.elements)
            self._is_fit &= flat.ndim == 1 and is_readable(flat) and len(starts) == len(elements) + 1
            self._is_fit &= parts is values or flat.dtype in _NUMBERS
            self._is_fit &= seen is None or (flat.nbytes - 1) >> parts.shift < len(seen)
            packed += (address(flat), len(flat), flat.itemsize, address(starts), address(elements), len(elements))
            packed += (0 if seen is None else address(seen), parts.shift)
            kept += (flat, starts, elements, seen)
        self._is_fit &= len(offsets.elements) == len(values.elements)
        of_slots = address(slots), len(slots) // 6, length, int(is_cut)
        tables = _TABLES.pack(address(row_starts), address(slot_starts), len(row_starts) - 1, *of_slots, *packed)
        self._tables = np.frombuffer(tables, np.uint8)
        self._address = address(self._tables)
        self._kept = kept  # for the addresses
        self._source = values.flat.dtype
        self._room = 256

    def __call__(self, rows: Indices) -> FoundSpans | None:
        """Return what is in rows; None where NumPy has to look, or to say what is wrong."""
        native = library()
        if native is None or not self._is_fit:
            return None
        rows = inputs("rows", rows)
        num_rows, room = len(rows), self._room
        while True:
            out = np.empty(num_rows + 1 + 5 * room + (room + 7) // 8, np.int64)
            wrong = native.find_spans(self._address, address(rows), num_rows, address(out), room)
            num_spans = int(out[num_rows])
            if not wrong:
                break
            if wrong & 15 != NO_ROOM:
                return None
            room = num_spans + num_spans // 2
            self._room = min(room, MOST_ROOM)  # who once asks for all rows does not make all that follow large
        at = num_rows + 1
        documents, offsets, sizes, begins, elements = (out[at + i * room : at + i * room + num_spans] for i in range(5))
        has_next = np.ndarray((num_spans,), np.bool_, out, (at + 5 * room) * 8)
        return FoundSpans(out[:at], documents, offsets, sizes, begins, has_next, elements)

    def write(self, rows: Indices, sheet: RowMemory, memory: NDArray[np.uint8]) -> bool:
        """Write rows into memory, as the sheet says; False, and nothing written, where NumPy has to."""
        native = library()
        if native is None or not (self._is_fit and sheet.is_fit and sheet.source == self._source):
            return False
        rows = inputs("rows", rows)
        to = address(memory)
        if not memory.flags.carray or memory.nbytes < sheet.num_bytes or to % 8 or len(rows) != sheet.num_rows:
            return False
        return not native.write_rows(self._address, address(rows), len(rows), sheet.address, to)
