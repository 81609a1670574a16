"""Which document is in which row: tables, small where documents are many.

Rows lie in *sections* of equal rows. A row of a section has a *slot* for each of its spans, and a slot is filled from a
*class*: the items of one length in one window of the corpus, in `order`. Row `j` of a section takes of a slot's class
the item of rank `base + j * step`. An item is the end of a document, all of it if it fits into a row. Full rows, cut
from documents of a row's length or longer, are a section of one slot, and its class has the length of a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackFacts:
    """What is known of packed rows as a whole."""

    num_rows: int
    num_documents: int
    """All of the source, the empty ones too."""
    num_empty: int
    """Documents without tokens: they are in no row."""
    num_tokens: int
    """Tokens that are in rows."""
    num_spans: int
    num_cut: int
    """Documents that are in more than one row, or truncated."""
    num_truncated: int
    """Tokens that are in no row."""
    min_documents: int
    """The fewest spans in a row."""
    most_documents: int
    """The most spans in a row."""
    max_documents: int
    """The same, with the padding counted as one."""
    max_seqlen: int
    """The longest span, the padding too."""

    def to_json(self) -> dict[str, int]:
        """Return it as a plan store's meta holds it."""
        return asdict(self)

    @classmethod
    def from_json(cls, table: Any) -> PackFacts:
        """Return what `to_json` has made; ValueError or TypeError if it was something else."""
        facts = cls(**table)
        if not all(type(value) is int and value >= 0 for value in asdict(facts).values()):
            raise ValueError("the facts of a plan are counts")
        return facts


class StoredIntegers(Protocol):
    """Whole numbers by their place, in memory or on disk."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Their type."""
        ...

    def take(self, places: Indices) -> NDArray[Any]:
        """Return some of them."""
        ...


def _num(numbers: Any) -> int:
    """Return how many there are, in memory or on disk."""
    return len(numbers) if isinstance(numbers, np.ndarray) else int(numbers.num_values)


MOST_CHECKED = 1 << 20
"""Slots that are looked at when a plan is opened."""

TABLES = ("row_starts", "slot_starts", "slots", "classes")
"""What is in memory, by the names of the arrays."""


@dataclass(frozen=True, slots=True, eq=False)
class PackTables:
    """The tables of packed rows."""

    facts: PackFacts
    row_starts: Indices
    """The first row of each section, and the number of rows."""
    slot_starts: Indices
    """The first slot of each section, and the number of slots."""
    slots: NDArray[np.unsignedinteger[Any]]
    """[slots, 3]: class, base and step."""
    classes: Indices
    """[classes, 5]: where it begins in `order`, how many it has, the length of its items, its window; and, of a class
    of full rows, which has the length of a row, where it begins in `pieces`.
    """
    order: StoredIntegers
    """Numbers of documents: of each window, those of its full rows, then those of each class, ascending."""
    pieces: StoredIntegers
    """Of each full row, which of its document it is."""

    def tables(self) -> Mapping[str, NDArray[Any]]:
        """Return what is in memory."""
        return {name: getattr(self, name) for name in TABLES}

    def check(self, length: int, *, is_laid: bool) -> None:
        """Raise ValueError unless the tables agree with each other and with the facts: no place is out of range.

        What is left to whoever looks at documents is that they are as long as their class says. Very many slots, as
        many windows make them, are left to their checksums: opening a plan must not take long.
        """
        facts = self.facts
        if is_laid:
            self._need(facts.num_rows == -(-facts.num_tokens // length) and facts.max_seqlen <= length)
            self._need(facts.min_documents <= facts.most_documents <= length)
            self._need(facts.most_documents <= facts.max_documents <= facts.most_documents + 1)
            return
        rows, slots, classes = self.row_starts, self.slot_starts, self.classes
        is_whole = all(table.dtype == np.int64 for table in (rows, slots, classes))
        self._need(is_whole and all(table.dtype.kind == "u" for table in (self.slots, self.order, self.pieces)))
        self._need(len(rows) == len(slots) > 1 and rows[0] == slots[0] == 0)
        self._need(bool((rows[1:] >= rows[:-1]).all() and (slots[1:] > slots[:-1]).all()))
        self._need(rows[-1] == facts.num_rows and slots[-1] == len(self.slots))
        first, count, size, window, piece = classes.T
        is_full = size == length
        self._need(bool((classes >= 0).all() and (count > 0).all() and (size > 0).all() and (size <= length).all()))
        self._need(bool((first <= _num(self.order) - count).all() and (window[1:] >= window[:-1]).all()))
        self._need(bool((piece <= _num(self.pieces) - count)[is_full].all()))

        if len(self.slots) > MOST_CHECKED:
            return
        number, base, step = self.slots.astype(np.int64).T
        self._need(bool((number >= 0).all() and (number < len(classes)).all() and (step > 0).all()))
        num_rows, num_slots = np.diff(rows), np.diff(slots)
        room = count[number] - 1 - base
        self._need(bool((base >= 0).all() and (room >= 0).all()))
        self._need(bool((num_rows.repeat(num_slots) - 1 <= room // step).all()))
        used = np.add.reduceat(size[number], slots[:-1])
        padding = length - used
        num_spans = num_rows @ num_slots
        self._need(int(padding.min()) >= 0 and num_spans == count.sum() == facts.num_spans)
        self._need(int(num_rows @ used) == facts.num_tokens)
        self._need((facts.min_documents, facts.most_documents) == (int(num_slots.min()), int(num_slots.max())))
        self._need(facts.max_documents == int((num_slots + (padding > 0)).max()))
        self._need(facts.max_seqlen == max(int(size.max()), int(padding.max())))

    @staticmethod
    def _need(holds: bool) -> None:
        if not holds:
            raise ValueError("these are no tables of packed rows")

    @classmethod
    def of(cls, facts: PackFacts) -> PackTables:
        """Return the tables of rows that need none."""
        nothing, small = np.zeros(0, np.int64), np.zeros(0, np.uint32)
        return cls(
            facts=facts,
            row_starts=nothing,
            slot_starts=nothing,
            slots=small.reshape(0, 3),
            classes=nothing.reshape(0, 5),
            order=small,
            pieces=small,
        )
