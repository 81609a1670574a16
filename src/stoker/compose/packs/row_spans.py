"""What is in packed rows: stretches of documents."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


class DocumentSpan(NamedTuple):
    """A stretch of one document in one row."""

    row: int
    document: int
    offset: int
    """Where in the document it begins, in tokens."""
    start: int
    """The first column of the row that it takes."""
    stop: int
    """The column behind its last."""

    @property
    def size(self) -> int:
        """How many tokens it has."""
        return self.stop - self.start

    @property
    def columns(self) -> range:
        """The columns of the row that it takes."""
        return range(self.start, self.stop)


class RowSpans(NamedTuple):
    """The spans of some rows, one row after the other, each from its first column on."""

    row_starts: Indices
    """Row `r` has the spans from `row_starts[r]` to before `row_starts[r + 1]`."""
    documents: Indices
    offsets: Indices
    """Where in its document each begins."""
    sizes: Indices
    begins: Indices
    """Where each begins among all tokens of the source."""
    has_next: NDArray[np.bool_]
    """Whether its document goes on, in another row, so that its last token has a label."""

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
