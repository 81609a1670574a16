"""What is packed: documents of tokens, wherever they are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError, DataError
from stoker.native import Parts
from stoker.plan.packing import starts_of
from stoker.store import Store
from stoker.store.checksums import checksum
from stoker.store.crops import Tokens
from stoker.store.reader import Stretch

Indices = NDArray[np.int64]

READ_TOGETHER = 1 << 20
"""Documents whose borders are read in one go."""


class Documents(Protocol):
    """Tokens one after the other, and the documents in them, each wholly in one piece of memory."""

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

    def borders(self, first: int, last: int) -> Indices:
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


class Held:
    """Documents in memory."""

    def __init__(self, flat: NDArray[Any], starts: Indices) -> None:
        self._flat, self._starts = flat, starts
        self.dtype = flat.dtype

    @classmethod
    def of(cls, documents: Sequence[Any]) -> Held:
        """Return documents that are given one by one: arrays or lists of whole numbers."""
        arrays = [_whole_numbers(document, number) for number, document in enumerate(documents)]
        kinds = {array.dtype for array in arrays if array.size}
        dtype = np.result_type(*kinds) if kinds else np.dtype(np.int64)
        if dtype.kind not in "iu":  # NumPy's way out of uint64 beside int64
            raise ArgumentError(f"the documents are of {', '.join(sorted(map(str, kinds)))}", hint="use one type")
        flat = np.concatenate([array.astype(dtype, copy=False) for array in arrays] or [np.zeros(0, dtype)])
        return cls(flat, starts_of(np.array([len(array) for array in arrays], np.int64)))

    @property
    def num_values(self) -> int:
        """How many tokens there are."""
        return len(self._flat)

    @property
    def num_documents(self) -> int:
        """How many documents there are."""
        return len(self._starts) - 1

    @cached_property
    def fingerprint(self) -> str:
        """What tells these tokens from others."""
        return f"{checksum(self._flat.tobytes()):016x}.{self.dtype}.{checksum(self._starts.tobytes()):016x}"

    def borders(self, first: int, last: int) -> Indices:
        """Return where documents begin."""
        return self._starts[first : last + 1]

    def bounds(self, documents: Indices) -> tuple[Indices, Indices]:
        """Return where documents begin, and how many tokens they have."""
        begins = self._starts[documents]
        return begins, self._starts[documents + 1] - begins

    def documents_at(self, values: Indices) -> Indices:
        """Return which documents tokens belong to."""
        return self._starts.searchsorted(values, "right") - 1

    def spans(self, begins: Indices, sizes: Indices) -> tuple[NDArray[Any], Indices]:  # noqa: ARG002
        """Return the memory, and where tokens are in it."""
        return self._flat, begins

    def parts(self) -> Parts:
        """Return where the tokens lie, for functions in C."""
        return Parts.of(self._flat)

    def offset_parts(self) -> Parts:
        """Return where documents begin, for functions in C."""
        return Parts.of(self._starts, self.num_documents)


def _whole_numbers(document: Any, number: int) -> NDArray[Any]:
    try:
        array = np.asarray(document)
    except (ValueError, TypeError, OverflowError) as error:
        raise ArgumentError(f"document {number} makes no array: {error}", hint="pass a list of token ids") from error
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ArgumentError(
            f"document {number} is not a row of whole numbers but of {array.dtype}, shape {array.shape}",
            hint=_hint_for(document),
        )
    return array if array.size else np.zeros(0, np.int64)


def _hint_for(document: Any) -> str:
    if isinstance(document, str):
        return "text is tokenised first: `stoker prepare tokens` makes a store of it"
    if isinstance(document, dict):
        return f"pass one field of each: [document[{next(iter(document), 'input_ids')!r}] for document in documents]"
    return "pass token ids, a list or an array of them for each document"


class Adapted:
    """Tokens of others that know their borders, and can be read by windows alone."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._starts: Indices | None = None
        self.num_values, self.num_documents = tokens.num_values, tokens.num_documents
        self.dtype = tokens.dtype.newbyteorder("=")

    @property
    def fingerprint(self) -> str | None:
        """What tells these tokens from others, if they know."""
        return getattr(self._tokens, "fingerprint", None)

    def __reduce__(self) -> tuple[Any, ...]:
        return Adapted, (self._tokens,)

    def borders(self, first: int, last: int) -> Indices:
        """Return where documents begin."""
        return self._tokens.borders(first, last)

    @property
    def _all(self) -> Indices:
        if self._starts is None:
            starts = self._tokens.borders(0, self.num_documents)
            check_borders(starts, 0, self.num_values)
            self._starts = starts
        return self._starts

    def bounds(self, documents: Indices) -> tuple[Indices, Indices]:
        """Return where documents begin, and how many tokens they have."""
        begins = self._all[documents]
        return begins, self._all[documents + 1] - begins

    def documents_at(self, values: Indices) -> Indices:
        """Return which documents tokens belong to."""
        return self._all.searchsorted(values, "right") - 1

    def spans(self, begins: Indices, sizes: Indices) -> tuple[NDArray[Any], Indices]:
        """Return the tokens, read one stretch after the other, and where each begins."""
        parts = [
            self._tokens.windows(np.array([begin], np.int64), size)[0]
            for begin, size in zip(begins.tolist(), sizes.tolist())
        ]
        flat = np.concatenate(parts) if parts else np.zeros(0, self.dtype)
        return flat.astype(self.dtype, copy=False), starts_of(sizes)[:-1]


def documents_of(source: Any, column: str) -> Documents:
    """Return the documents of a source: a store, its stretch, tokens with borders, a path, or lists in memory."""
    if isinstance(source, (str, os.PathLike)):
        from stoker.source.formats import open as opened

        source = opened(source)
    if isinstance(source, Store):
        return source.stretch(column)
    if isinstance(source, Stretch):
        return source
    if all(hasattr(source, name) for name in ("num_values", "num_documents", "dtype", "windows", "borders")):
        if not source.num_documents and source.num_values:
            raise ArgumentError(
                f"the borders of the documents in {source!r} are not known",
                hint="pack a store (`stoker prepare tokens` makes one) or a Megatron dataset, or use tokens(length)",
            )
        if all(hasattr(source, name) for name in ("bounds", "documents_at", "spans")):
            return source  # type: ignore[no-any-return]
        return Adapted(source)
    is_listed = isinstance(source, np.ndarray) or (isinstance(source, Sequence) and not isinstance(source, bytes))
    if not is_listed or (isinstance(source, np.ndarray) and source.ndim != 2):
        raise ArgumentError(
            f"{_named(source)} cannot be packed",
            hint="pass a store of tokens or its path, a Megatron dataset, or a list of lists of tokens; text becomes a "
            "store by `stoker prepare tokens`",
        )
    return Held.of(source)


def _named(source: Any) -> str:
    text = repr(source)
    return text if len(text) <= 80 else f"a {type(source).__name__}"


def lengths_of(documents: Documents) -> Iterator[Indices]:
    """Yield the lengths of all documents in order, many at a time. Borders that cannot be are `DataError`."""
    for first in range(0, documents.num_documents, READ_TOGETHER):
        borders = documents.borders(first, min(first + READ_TOGETHER, documents.num_documents))
        check_borders(borders, first, documents.num_values)
        yield np.diff(borders)


def check_borders(borders: Indices, first: int, num_values: int) -> None:
    """Refuse borders that go back, or beyond the tokens."""
    if borders[0] < 0 or borders[-1] > num_values or (borders[1:] < borders[:-1]).any():
        raise DataError(
            f"the borders of the documents from {first} on cannot be: they go back, or beyond the tokens\n"
            "hint: `stoker verify` checks a store; make the file anew"
        )
