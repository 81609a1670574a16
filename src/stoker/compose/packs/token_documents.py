"""The documents that are packed: in a store, in memory, or in another source of tokens."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError
from stoker.native import ArrayParts
from stoker.plan.packing import starts_of
from stoker.source.protocols import own_fingerprint
from stoker.store import Store
from stoker.store.checksums import checksum
from stoker.store.crops import Tokens, check_offsets, offsets_of
from stoker.store.reader import ColumnValues

Indices = NDArray[np.int64]

MAX_READ = 1 << 20
"""Documents whose offsets are read at a time."""


class Documents(Protocol):
    """Tokens one after the other, cut into documents, each of which lies in one piece of memory."""

    @property
    def num_values(self) -> int:
        """How many tokens there are."""
        ...

    @property
    def num_documents(self) -> int:
        """How many documents there are."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the tokens as stored."""
        ...

    def offsets(self, first: int, last: int) -> Indices:
        """Return where documents `first` to `last` begin; the one behind the last begins at the end."""
        ...

    def bounds(self, documents: Indices) -> tuple[Indices, Indices]:
        """Return where documents begin, and how many tokens they have."""
        ...

    def documents_at(self, values: Indices) -> Indices:
        """Return which documents tokens belong to."""
        ...

    def spans(self, begins: Indices, sizes: Indices) -> tuple[NDArray[Any], Indices]:
        """Return memory, and where in it `sizes` tokens from each of `begins` on are; each lies in one document."""
        ...


class _KnownStarts:
    """Documents whose starts are all in memory."""

    _starts: Indices
    """[num_documents + 1]: where each document begins, and the number of tokens."""

    def bounds(self, documents: Indices) -> tuple[Indices, Indices]:
        """Return where documents begin, and how many tokens they have."""
        starts = self._starts
        begins = starts[documents]
        return begins, starts[documents + 1] - begins

    def documents_at(self, values: Indices) -> Indices:
        """Return which documents tokens belong to."""
        return self._starts.searchsorted(values, "right") - 1


class DocumentsInMemory(_KnownStarts):
    """Documents in memory."""

    def __init__(self, flat: NDArray[Any], starts: Indices) -> None:
        self._flat, self._starts = flat, starts
        self.dtype = flat.dtype
        self.num_values, self.num_documents = len(flat), len(starts) - 1

    @classmethod
    def of(cls, documents: Sequence[Any]) -> DocumentsInMemory:
        """Return documents given one by one, as arrays or lists of integers."""
        arrays = [_as_integers(document, number) for number, document in enumerate(documents)]
        kinds = {array.dtype for array in arrays if array.size}
        dtype = np.result_type(*kinds) if kinds else np.dtype(np.int64)
        if dtype.kind not in "iu":  # uint64 together with int64 makes float64
            raise ArgumentError(f"the documents are of {', '.join(sorted(map(str, kinds)))}", hint="use one type")
        flat = np.concatenate([array.astype(dtype, copy=False) for array in arrays] or [np.zeros(0, dtype)])
        return cls(flat, starts_of(np.array([len(array) for array in arrays], np.int64)))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the tokens and of where documents begin."""
        return f"{checksum(self._flat.tobytes()):016x}.{self.dtype}.{checksum(self._starts.tobytes()):016x}"

    def offsets(self, first: int, last: int) -> Indices:
        """Return where documents `first` to `last` begin."""
        return self._starts[first : last + 1]

    def spans(self, begins: Indices, sizes: Indices) -> tuple[NDArray[Any], Indices]:  # noqa: ARG002
        """Return the memory, and where the tokens are in it."""
        return self._flat, begins

    def parts(self) -> ArrayParts:
        """Return where the tokens lie, for functions in C."""
        return ArrayParts.of(self._flat)

    def offset_parts(self) -> ArrayParts:
        """Return where documents begin, for functions in C."""
        return ArrayParts.of(self._starts, self.num_documents)


class DocumentsByWindow(_KnownStarts):
    """Documents of another source of tokens, which knows their offsets and reads windows of tokens."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self.num_values, self.num_documents = tokens.num_values, tokens.num_documents
        self.dtype = tokens.dtype.newbyteorder("=")

    @property
    def fingerprint(self) -> str | None:
        """The source's own, if it has one."""
        return own_fingerprint(self._tokens)

    def __reduce__(self) -> tuple[Any, ...]:
        return DocumentsByWindow, (self._tokens,)

    def offsets(self, first: int, last: int) -> Indices:
        """Return where documents `first` to `last` begin."""
        return offsets_of(self._tokens)(first, last)

    @cached_property
    def _starts(self) -> Indices:  # type: ignore[override]
        starts = self.offsets(0, self.num_documents)
        check_offsets(starts, 0, self.num_values)
        return starts

    def spans(self, begins: Indices, sizes: Indices) -> tuple[NDArray[Any], Indices]:
        """Return the tokens, read span by span, and where each span begins."""
        parts = [
            self._tokens.windows(np.array([begin], np.int64), size)[0]
            for begin, size in zip(begins.tolist(), sizes.tolist())
        ]
        flat = np.concatenate(parts) if parts else np.zeros(0, self.dtype)
        return flat.astype(self.dtype, copy=False), starts_of(sizes)[:-1]


def _as_integers(document: Any, number: int) -> NDArray[Any]:
    try:
        array = np.asarray(document)
    except (ValueError, TypeError, OverflowError) as error:
        raise ArgumentError(
            f"document {number} cannot be converted to an array: {error}", hint="pass a list of token ids"
        ) from error
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        if isinstance(document, str):
            hint = "tokenize text first: `stoker prepare tokens` makes a store of it"
        elif isinstance(document, dict):
            name = next(iter(document), "input_ids")
            hint = f"pass one field of each: [document[{name!r}] for document in documents]"
        else:
            hint = "pass token ids, a list or an array of them for each document"
        raise ArgumentError(
            f"document {number} must be integers in one dimension, got {array.dtype} of shape {array.shape}", hint=hint
        )
    return array if array.size else np.zeros(0, np.int64)


def documents_of(source: Any, column: str) -> Documents:
    """Return the documents of a source: a store, a column of one, tokens with offsets, a path, or lists in memory."""
    if isinstance(source, (str, os.PathLike)):
        from stoker.source.formats import open as opened

        source = opened(source)
    if isinstance(source, Store):
        return source.stretch(column)
    if isinstance(source, ColumnValues):
        return source
    has_offsets = hasattr(source, "offsets") or hasattr(source, "borders")
    if has_offsets and all(hasattr(source, name) for name in ("num_values", "num_documents", "dtype", "windows")):
        if not source.num_documents and source.num_values:
            raise ArgumentError(
                f"{source!r} does not know where documents begin",
                hint="pack a store (`stoker prepare tokens` makes one) or a Megatron dataset, or use tokens(length)",
            )
        if all(hasattr(source, name) for name in ("bounds", "documents_at", "spans")):
            return source  # type: ignore[no-any-return]
        return DocumentsByWindow(source)
    is_listed = isinstance(source, np.ndarray) or (isinstance(source, Sequence) and not isinstance(source, bytes))
    if not is_listed or (isinstance(source, np.ndarray) and source.ndim != 2):
        text = repr(source)
        raise ArgumentError(
            f"{text if len(text) <= 80 else f'a {type(source).__name__}'} cannot be packed",
            hint="pass a store of tokens or its path, a Megatron dataset, or a list of lists of tokens; "
            "`stoker prepare tokens` makes a store of text",
        )
    return DocumentsInMemory.of(source)


def lengths_of(documents: Documents) -> Iterator[Indices]:
    """Yield the lengths of all documents in order, many at a time. Raise `DataError` for invalid offsets."""
    for first in range(0, documents.num_documents, MAX_READ):
        offsets = documents.offsets(first, min(first + MAX_READ, documents.num_documents))
        check_offsets(offsets, first, documents.num_values)
        yield np.diff(offsets)
