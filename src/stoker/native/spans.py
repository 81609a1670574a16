"""Look up the spans of packed rows in one pass of C.

The arithmetic is that of `compose/packs/pack_tables.py`; `BestFitRows` in `pack_rows.py` there is the NumPy twin.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError
from stoker.native.arrays import INT64, SOURCES, TARGETS, address, as_input, is_readable
from stoker.native.faults import NO_ROOM
from stoker.native.library import library
from stoker.native.structures import Structure, declarations
from stoker.native.token_rows import LONGEST, checked_bytes

Indices = NDArray[np.int64]

_NUMBERS = (np.dtype(np.uint32), np.dtype(np.uint64), INT64)

MOST_ROOM = 1 << 16
"""Spans that the output has room for at the first attempt, at most."""


class ArrayParts(NamedTuple):
    """Numbers stored one after the other in parts: number `i` of part `p` is `flat[elements[p] + i - starts[p]]`."""

    flat: NDArray[Any]
    starts: Indices
    """The first number of each part, and the count of all numbers."""
    elements: Indices
    seen: NDArray[np.bool_] | None = None
    """For each block of `flat`, `1 << shift` bytes, whether its checksum was verified; None if all may be read."""
    shift: int = 0

    @classmethod
    def of(cls, flat: NDArray[Any], count: int | None = None) -> ArrayParts:
        """Return an array, or the first `count` numbers of it, as a single part."""
        return cls(flat, np.array([0, len(flat) if count is None else count]), np.zeros(1, np.int64))


class FoundSpans(NamedTuple):
    """The spans of some rows, as in `RowSpans` of `compose/packs/pack_rows.py`."""

    row_starts: Indices
    documents: Indices
    offsets: Indices
    sizes: Indices
    begins: Indices
    has_next: NDArray[np.bool_]
    elements: Indices
    """Where each span begins in the memory of the token values. All of it may be read."""


class RowMemory:
    """How the arrays of a batch of rows lie in one piece of memory: `places` has the bytes before each array.

    Raises `ArgumentError` if they do not fit into `num_bytes`.
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
        self.is_supported = source in SOURCES and dtype in TARGETS and 0 < length <= LONGEST
        if not self.is_supported:
            return
        for name, number in (("pad", pad), ("ignored", ignored)):
            checked_bytes(name, number, dtype)
        self._rows = np.arange(num_rows)
        # `write_rows` copies this structure, sets the spans, and adds the address of the memory to each output's place
        filling = _structure("filling").pack(
            {
                **dict.fromkeys(("flat", "num_values", "elements", "sizes", "has_next", "num_spans", "row_starts"), 0),
                **{name: places[name] for name in sizes},
                "source": SOURCES[source],
                "rows": address(self._rows),
                "num_rows": num_rows,
                "num_places": num_rows,
                "length": length,
                "token_bytes": dtype.itemsize,
                "pad": pad,
                "label_bytes": dtype.itemsize,
                "ignored": ignored,
                "width": width,
            }
        )
        self._filling = np.frombuffer(filling, np.uint8)
        self.address = address(self._filling)


class SpanFinder:
    """Looks up the spans of best-fit rows, in one epoch. Safe to use from threads, and after a fork."""

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
        """Take the tables: `slots` are [slots, 6], the fields of `struct slot` in spans.c.

        `offsets` has a part for each part of `values`; in it document offsets count from 0, and there is one more of
        them than documents.
        """
        row_starts, slot_starts = as_input("row_starts", row_starts), as_input("slot_starts", slot_starts)
        slots = as_input("slots", slots.reshape(-1))
        fields = {
            "row_starts": address(row_starts),
            "slot_starts": address(slot_starts),
            "num_sections": len(row_starts) - 1,
            "slots": address(slots),
            "num_slots": len(slots) // 6,
            "length": length,
            "is_cut": int(is_cut),
        }
        self._kept: list[Any] = [row_starts, slot_starts, slots]  # their addresses are in the structure
        supported = len(row_starts) == len(slot_starts) > 1 and length > 0
        for name, parts in {"order": order, "pieces": pieces, "offsets": offsets, "values": values}.items():
            flat, seen = parts.flat, parts.seen
            starts, elements = as_input("starts", parts.starts), as_input("elements", parts.elements)
            supported &= flat.ndim == 1 and is_readable(flat) and len(starts) == len(elements) + 1
            supported &= name == "values" or flat.dtype in _NUMBERS
            supported &= seen is None or (flat.nbytes - 1) >> parts.shift < len(seen)
            fields |= {
                f"{name}.flat": address(flat),
                f"{name}.num_values": len(flat),
                f"{name}.bytes": flat.itemsize,
                f"{name}.starts": address(starts),
                f"{name}.elements": address(elements),
                f"{name}.num_parts": len(elements),
                f"{name}.seen": 0 if seen is None else address(seen),
                f"{name}.shift": parts.shift,
            }
            self._kept += (flat, starts, elements, seen)
        self._is_supported = supported and len(offsets.elements) == len(values.elements)
        self._tables = np.frombuffer(_structure("tables").pack(fields), np.uint8)
        self._address = address(self._tables)
        self._source = values.flat.dtype
        self._room = 256

    def __call__(self, rows: Indices) -> FoundSpans | None:
        """Return the spans of rows; None where NumPy has to look them up, or to raise the error."""
        native = library()
        if native is None or not self._is_supported:
            return None
        rows = as_input("rows", rows)
        num_rows, room = len(rows), self._room
        while True:
            # struct finding in spans.c: row_starts [R + 1], five arrays [room] of int64, has_next [room] of bytes
            out = np.empty(num_rows + 1 + 5 * room + (room + 7) // 8, np.int64)
            wrong = native.find_spans(
                tables=self._address, rows=address(rows), num_rows=num_rows, out=address(out), room=room
            )
            num_spans = int(out[num_rows])
            if not wrong:
                break
            if wrong & 15 != NO_ROOM:
                return None
            room = num_spans + num_spans // 2
            self._room = min(room, MOST_ROOM)  # one call for all rows must not make every later call allocate as much
        at = num_rows + 1
        documents, offsets, sizes, begins, elements = (out[at + i * room : at + i * room + num_spans] for i in range(5))
        has_next = np.ndarray((num_spans,), np.bool_, out, (at + 5 * room) * 8)
        return FoundSpans(out[:at], documents, offsets, sizes, begins, has_next, elements)

    def write(self, rows: Indices, to: RowMemory, memory: NDArray[np.uint8]) -> bool:
        """Write rows into memory laid out as in `to`; return False, having written nothing, where NumPy has to."""
        native = library()
        if native is None or not (self._is_supported and to.is_supported and to.source == self._source):
            return False
        rows = as_input("rows", rows)
        begin = address(memory)
        if not memory.flags.carray or memory.nbytes < to.num_bytes or begin % 8 or len(rows) != to.num_rows:
            return False
        return not native.write_rows(
            tables=self._address, rows=address(rows), num_rows=len(rows), filling=to.address, memory=begin
        )


def _structure(name: str) -> Structure:
    return declarations().structure(name)
