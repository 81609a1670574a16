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
class Facts:
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
    def from_json(cls, table: Any) -> Facts:
        """Return what `to_json` has made; ValueError or TypeError if it was something else."""
        facts = cls(**table)
        if not all(type(value) is int and value >= 0 for value in asdict(facts).values()):
            raise ValueError("the facts of a plan are counts")
        return facts


class Numbers(Protocol):
    """Whole numbers by their place, in memory or on disk."""

    def take(self, places: Indices) -> NDArray[Any]:
        """Return some of them."""
        ...


TABLES = ("row_starts", "slot_starts", "slots", "classes")
"""What is in memory, by the names of the arrays."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The tables of packed rows."""

    facts: Facts
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
    order: Numbers
    """Numbers of documents: of each window, those of its full rows, then those of each class, ascending."""
    pieces: Numbers
    """Of each full row, which of its document it is."""

    def tables(self) -> Mapping[str, NDArray[Any]]:
        """Return what is in memory."""
        return {name: getattr(self, name) for name in TABLES}

    @classmethod
    def of(cls, facts: Facts) -> Layout:
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
