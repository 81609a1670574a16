"""Which document is in which row, as tables that stay small where documents are many.

Rows lie in *sections* of equal rows. A row has a *slot* for each of its spans, and all rows of a section have the same
slots. A slot is filled from a *class*: the items of one length in one window of the corpus, listed in `order`. Row `j`
of the section takes item `base + j * step` of the class. An item is the end of a document, all of it where that fits
into a row. Full rows, cut from documents of a row's length or longer, are a section with one slot, whose class has
the length of a row.

Shapes: K sections, L slots, C classes, N items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stoker.foundation.text import format_count

Indices = NDArray[np.int64]

MAX_CHECKED_SLOTS = 1 << 20
"""Slots that are checked when a plan is opened. Of more than that, the checksums alone are verified."""

TABLES = ("row_starts", "slot_starts", "slots", "classes")
"""The arrays that are in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackFacts:
    """Counts of a pack as a whole."""

    num_rows: int
    num_documents: int
    """All documents of the source, empty ones included."""
    num_empty: int
    """Documents without tokens; they are in no row."""
    num_tokens: int
    """Tokens that are in rows."""
    num_spans: int
    num_cut: int
    """Documents that are in several rows, or truncated."""
    num_truncated: int
    """Tokens that are in no row."""
    min_documents: int
    """The fewest spans in a row."""
    most_documents: int
    """The most spans in a row."""
    max_documents: int
    """The most spans in a row, with the padding counted as one."""
    max_seqlen: int
    """The longest span, padding included."""

    @classmethod
    def from_json(cls, table: Any) -> PackFacts:
        """Return facts that were stored as a dict; raise ValueError or TypeError if it is something else."""
        facts = cls(**table)
        if not all(type(value) is int and value >= 0 for value in asdict(facts).values()):
            raise ValueError("the facts of a plan must be counts")
        return facts


@dataclass(frozen=True, slots=True, kw_only=True)
class PackReport:
    """How well the documents of a source fill their rows. `str()` is a small table."""

    num_rows: int
    length: int
    num_documents: int
    """Documents with tokens."""
    num_empty: int
    """Documents without tokens, which are in no row."""
    num_tokens: int
    """Tokens that are in rows."""
    fill: float
    """The share of the rows' columns that hold tokens."""
    num_padding: int
    """The columns that hold none."""
    num_cut: int
    """Documents that are in several rows, or truncated."""
    num_truncated: int
    """Tokens that are in no row, because their documents are too long."""
    min_documents: int
    """The fewest documents, or parts of them, in a row."""
    mean_documents: float
    max_documents: int

    @classmethod
    def of(cls, facts: PackFacts, length: int) -> PackReport:
        """Return the report for rows of `length`."""
        num_columns = facts.num_rows * length
        return cls(
            num_rows=facts.num_rows,
            length=length,
            num_documents=facts.num_documents - facts.num_empty,
            num_empty=facts.num_empty,
            num_tokens=facts.num_tokens,
            fill=facts.num_tokens / num_columns,
            num_padding=num_columns - facts.num_tokens,
            num_cut=facts.num_cut,
            num_truncated=facts.num_truncated,
            min_documents=facts.min_documents,
            mean_documents=facts.num_spans / facts.num_rows,
            max_documents=facts.most_documents,
        )

    def __str__(self) -> str:
        share = self.num_cut / self.num_documents if self.num_documents else 0
        empty = f", and {self.num_empty:,} empty ones left out" if self.num_empty else ""
        truncated = f", and {self.num_truncated:,} truncated" if self.num_truncated else ""
        lines = {
            "rows": f"{self.num_rows:,} of {self.length:,} tokens",
            "documents": f"{self.num_documents:,}{empty}",
            "tokens": f"{self.num_tokens:,}{truncated}",
            "fill": f"{100 * self.fill:.4f}% ({self.num_padding:,} tokens of padding)",
            "cut": f"{format_count(self.num_cut, 'document')} ({100 * share:.2f}%)",
            "per row": f"{self.mean_documents:.1f} documents ({self.min_documents:,} to {self.max_documents:,})",
        }
        return "\n".join(f"{name:<9} {text}" for name, text in lines.items())


class StoredIntegers(Protocol):
    """Integers by position, in memory or on disk."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Their type."""
        ...

    def take(self, places: Indices) -> NDArray[Any]:
        """Return some of them."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class PackTables:
    """The tables of a pack: its plan."""

    facts: PackFacts
    row_starts: Indices
    """[K + 1]: the first row of each section, and the number of rows."""
    slot_starts: Indices
    """[K + 1]: the first slot of each section, and the number of slots."""
    slots: NDArray[np.unsignedinteger[Any]]
    """[L, 3]: class, base and step."""
    classes: Indices
    """[C, 5]: where the class begins in `order`, how many items it has, their length, their window; and, for a class of
    full rows, where it begins in `pieces`.
    """
    order: StoredIntegers
    """[N]: the document of each item. In each window, those of full rows, then those of each class, ascending."""
    pieces: StoredIntegers
    """For each full row, which piece of its document it is, counted from 0."""

    def tables(self) -> Mapping[str, NDArray[Any]]:
        """Return the arrays that are in memory."""
        return {name: getattr(self, name) for name in TABLES}

    def check(self, length: int, *, is_concat: bool) -> None:
        """Raise ValueError unless the tables agree with each other and with the facts: no index is out of range.

        That documents are as long as their class says is checked when they are read.
        """
        facts = self.facts
        if is_concat:
            _require(facts.num_rows == -(-facts.num_tokens // length) and facts.max_seqlen <= length)
            _require(facts.min_documents <= facts.most_documents <= length)
            _require(facts.most_documents <= facts.max_documents <= facts.most_documents + 1)
            return
        rows, slots, classes = self.row_starts, self.slot_starts, self.classes
        _require(all(table.dtype == np.int64 for table in (rows, slots, classes)))
        _require(all(table.dtype.kind == "u" for table in (self.slots, self.order, self.pieces)))
        _require(len(rows) == len(slots) > 1 and rows[0] == slots[0] == 0)
        _require((rows[1:] >= rows[:-1]).all() and (slots[1:] > slots[:-1]).all())
        _require(rows[-1] == facts.num_rows and slots[-1] == len(self.slots))
        first, count, size, window, piece = classes.T
        _require((classes >= 0).all() and (count > 0).all() and (size > 0).all() and (size <= length).all())
        _require((first <= _count(self.order) - count).all() and (window[1:] >= window[:-1]).all())
        _require((piece <= _count(self.pieces) - count)[size == length].all())

        if len(self.slots) > MAX_CHECKED_SLOTS:
            return
        number, base, step = self.slots.astype(np.int64).T
        _require((number >= 0).all() and (number < len(classes)).all() and (step > 0).all())
        num_rows, num_slots = np.diff(rows), np.diff(slots)
        after_base = count[number] - 1 - base  # [L]: items of the class after the first one of the slot
        _require((base >= 0).all() and (after_base >= 0).all())
        _require((num_rows.repeat(num_slots) - 1 <= after_base // step).all())
        used = np.add.reduceat(size[number], slots[:-1])  # [K]: tokens in a row
        padding = length - used
        _require(padding.min() >= 0 and num_rows @ num_slots == count.sum() == facts.num_spans)
        _require(num_rows @ used == facts.num_tokens)
        _require((facts.min_documents, facts.most_documents) == (int(num_slots.min()), int(num_slots.max())))
        _require(facts.max_documents == int((num_slots + (padding > 0)).max()))
        _require(facts.max_seqlen == max(int(size.max()), int(padding.max())))

    @classmethod
    def without_tables(cls, facts: PackFacts) -> PackTables:
        """Return the plan of concatenated rows, which need no tables."""
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


def _require(holds: Any) -> None:
    if not holds:
        raise ValueError("these are not tables of packed rows")


def _count(numbers: Any) -> int:
    return len(numbers) if isinstance(numbers, np.ndarray) else int(numbers.num_values)
