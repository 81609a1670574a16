"""Rows of a fixed length cut from tokens, with the next tokens as labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from stoker import native
from stoker.errors import ArgumentError, DataError
from stoker.foundation.positions import Positions, in_range, one_position

IGNORED = -100
"""The label that torch's cross-entropy ignores."""

COUNTED_TOGETHER = 4096
"""Documents per entry of the row index, if rows stay within documents; rows inside a group are counted on access."""

Empty = Callable[[tuple[int, ...], DTypeLike], NDArray[Any]]


class Tokens(Protocol):
    """A sequence of tokens, and the offsets of its documents."""

    @property
    def num_values(self) -> int:
        """Number of tokens."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Their dtype as stored."""
        ...

    @property
    def num_documents(self) -> int:
        """Number of documents; 0 if their offsets are unknown."""
        ...

    def windows(self, starts: NDArray[np.int64], length: int) -> NDArray[Any]:
        """Return `length` tokens from each of `starts`, one row each, as a new array. All are in range."""
        ...

    def offsets(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the offsets of documents `first` to `last` (inclusive); that after the last document is the end."""
        ...


def offsets_of(tokens: Any) -> Callable[[int, int], NDArray[np.int64]]:
    """Return the method of a source of tokens that gives the offsets of documents.

    It was once called `borders`: sources that users wrote then still work.
    """
    offsets: Callable[[int, int], NDArray[np.int64]] = getattr(tokens, "offsets", None) or tokens.borders
    return offsets


def check_offsets(offsets: NDArray[np.int64], first: int, num_values: int) -> None:
    """Raise `DataError` if the offsets of documents from `first` on decrease or exceed the tokens."""
    if offsets[0] < 0 or offsets[-1] > num_values or (offsets[1:] < offsets[:-1]).any():
        raise DataError(
            f"document offsets are invalid from document {first}: decreasing, or past the end of the tokens\n"
            "hint: `stoker verify` checks a store; create the file again"
        )


class Crops:
    """Rows of `length` tokens with their labels, addressed by position; a whole batch is one gather.

    A sample is `{"tokens": ..., "labels": ...}`; the label of a token is the next token. Row `i` begins at token
    `i * stride`, across documents; a rest too short for another row is dropped. With `across=False` rows stay within
    documents: the last row of a document is padded with `pad`, its labels with `ignored`, and documents of a single
    token, which has no next token, are dropped. Counting these rows takes one pass over the offsets when this is made.

    `dtype` is that of tokens and labels; None keeps the stored dtype, to be widened on the device
    (`DataLoader(to=...)`). With `shared=True` tokens and labels are two views of the same memory: half the bytes, but a
    change of one changes the other.
    """

    is_pure = True
    """Reading draws no random numbers, so that the loader need not seed generators."""

    def __init__(
        self,
        tokens: Tokens,
        *,
        length: int = 2048,
        stride: int | None = None,
        across: bool = True,
        dtype: DTypeLike | None = "int64",
        shared: bool = False,
        pad: int = 0,
        ignored: int = IGNORED,
    ) -> None:
        if length < 1:
            raise ArgumentError(f"length must be positive, got {length}", hint="pass the number of tokens of a row")
        if stride is not None and stride < 1:
            raise ArgumentError(f"stride must be positive, got {stride}", hint="omit it for rows that do not overlap")
        self.dtype = tokens.dtype.newbyteorder("=") if dtype is None else np.dtype(dtype)
        if tokens.dtype.kind not in "iu":
            raise ArgumentError(f"values of {tokens.dtype} are not tokens", hint="tokens are integers")
        # From 32 bits on, a signed dtype is enough for an unsigned one: no vocabulary needs the last bit.
        is_wide = self.dtype.itemsize >= max(4, tokens.dtype.itemsize)
        if self.dtype.kind not in "iu" or not (is_wide or np.can_cast(tokens.dtype, self.dtype)):
            raise ArgumentError(
                f"dtype={self.dtype} cannot hold tokens of {tokens.dtype}",
                hint="use int64, or None for the stored dtype",
            )
        if not across and shared:
            raise ArgumentError(
                "shared=True is not possible with across=False: padded rows have labels of their own",
                hint="omit one of them",
            )
        limits = np.iinfo(self.dtype)
        for name, number in (("ignored", ignored), ("pad", pad)):
            if not across and not limits.min <= number <= limits.max:
                raise ArgumentError(
                    f"{name}={number} is out of range for {self.dtype}",
                    hint=f"use a signed dtype such as int64, or a {name} from {limits.min} to {limits.max}",
                )
        if not across and not tokens.num_documents and tokens.num_values:
            raise ArgumentError(
                "across=False needs the offsets of documents, which are unknown here", hint="omit across=False"
            )
        self._tokens, self.length, self.stride = tokens, length, stride or length
        self.across, self.shared, self.pad, self.ignored = across, shared, pad, ignored
        # The tokens check windows themselves, and a position is in range exactly if its window is.
        self._is_direct = across and getattr(tokens, "checks_range", False)
        # With narrower dtypes, going through `windows` is as fast.
        self._is_native = self._is_direct and hasattr(tokens, "find_mapped") and self.dtype.itemsize == 8 and not shared
        self._is_native = self._is_native and native.can_gather(tokens.dtype, self.dtype)
        self._firsts: NDArray[np.int64] | None = None
        if across:
            self._size = (
                max(0, (tokens.num_values - 1 - length) // self.stride + 1) if tokens.num_values > length else 0
            )
        else:
            self._firsts = self._counted()
            self._size = int(self._firsts[-1])

    @property
    def fingerprint(self) -> str | None:
        """Identity of these rows; None if the tokens have no fingerprint."""
        fingerprint = getattr(self._tokens, "fingerprint", None)
        return f"{fingerprint}.{self._way}" if isinstance(fingerprint, str) else None

    def earlier_fingerprints(self) -> Iterator[str]:
        """Yield the fingerprints of these rows before the tokens grew."""
        earlier = getattr(self._tokens, "earlier_fingerprints", None)
        return (f"{fingerprint}.{self._way}" for fingerprint in (earlier() if earlier is not None else ()))

    @property
    def _way(self) -> str:
        return f"{self.length}.{self.stride}.{'across' if self.across else f'within.{self.pad}.{self.ignored}'}"

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """The dtype of the tokens in the source."""
        return self._tokens.dtype

    @property
    def meta(self) -> dict[str, Any]:
        """Metadata of the source, such as its tokenizer; empty if it has none."""
        meta = getattr(self._tokens, "meta", None)
        return meta if isinstance(meta, dict) else {}

    def expect(self, settings: Mapping[str, Any]) -> None:
        """Raise `StoreMismatch`, with the differences, unless the tokens were prepared with these settings."""
        expect = getattr(self._tokens, "expect", None)
        if expect is None:
            raise ArgumentError(
                "these tokens record no preparation settings, so expect= cannot be checked",
                hint="use expect= with stores",
            )
        expect(settings)

    def describe(self, position: int) -> str:
        """Return the location of a row."""
        if not self.across:
            starts, _ = self._places(np.array([position]))
            return f"tokens from {int(starts[0])} on"
        return f"tokens from {position * self.stride} on"

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        where = "across documents" if self.across else "within documents"
        return f"<Crops: {self._size:,} rows of {self.length} tokens ({self.dtype}), {where}>"

    def __getitem__(self, position: int) -> dict[str, NDArray[Any]]:
        batch = self.__getbatch__([one_position(position)], np.empty)
        return {name: rows[0] for name, rows in batch.items()}

    def __getitems__(self, positions: Positions) -> list[dict[str, NDArray[Any]]]:
        batch = self.__getbatch__(positions, np.empty)
        return [dict(zip(batch, rows)) for rows in zip(*batch.values())]

    def __getbatch__(self, positions: Positions, empty: Empty) -> dict[str, NDArray[Any]]:
        """Return the rows at `positions` as a batch, in memory from `empty(shape, dtype)`."""
        if self._is_direct and type(positions) is np.ndarray and positions.dtype == np.int64 and positions.ndim == 1:
            starts: Any = positions * self.stride
            mapped: Any = self._tokens.find_mapped(starts, self.length + 1) if self._is_native else None  # type: ignore[attr-defined]
            if mapped is not None:
                return self._gathered(mapped, starts, empty)
            try:
                return self._split(self._tokens.windows(starts, self.length + 1), empty)
            except ArgumentError:
                pass  # out of range, or negative: handled below
        numbers = in_range(positions, self._size, what="the rows")
        if self.across:
            return self._split(self._tokens.windows(numbers * self.stride, self.length + 1), empty)
        return self._within(numbers, empty)

    def _gathered(self, mapped: tuple[Any, Any], starts: Any, empty: Empty) -> dict[str, NDArray[Any]]:
        """Copy tokens and labels directly from the mapped files, in one pass."""
        flat, elements = mapped
        num_rows, length = len(elements), self.length
        tokens, labels = empty((2, num_rows, length), self.dtype)  # one call, because both are written at the same time
        if not native.gather_rows(flat, elements, length, tokens, labels):
            rows = self._tokens.windows(starts, length + 1)
            tokens[...], labels[...] = rows[:, :-1], rows[:, 1:]
        self._tokens.check()  # type: ignore[attr-defined]
        return {"tokens": tokens, "labels": labels}

    def fields(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Return shape and dtype of each field of a row."""
        return dict.fromkeys(("tokens", "labels"), ((self.length,), self.dtype))

    def fill(self, positions: Positions, batch: Mapping[str, NDArray[Any]], rows: NDArray[np.int64]) -> None:
        """Write the rows at `positions` into rows `rows` of a batch's arrays, which have the `fields`."""
        numbers = in_range(positions, self._size, what="the rows")
        if self.across:
            found = self._tokens.windows(numbers * self.stride, self.length + 1)
            batch["tokens"][rows], batch["labels"][rows] = found[:, :-1], found[:, 1:]
            return
        for name, values in self._within(numbers, np.empty).items():
            batch[name][rows] = values

    def _split(self, rows: NDArray[Any], empty: Empty) -> dict[str, NDArray[Any]]:
        """Return tokens and labels of rows that are one longer."""
        num_rows, length = len(rows), self.length
        if self.shared:
            both = empty((num_rows, length + 1), self.dtype)
            both[...] = rows
            return {"tokens": both[:, :-1], "labels": both[:, 1:]}
        tokens = empty((num_rows, length), self.dtype)
        tokens[...] = rows[:, :-1]  # written before the next allocation: a slot may move when it grows
        labels = empty((num_rows, length), self.dtype)
        labels[...] = rows[:, 1:]
        return {"tokens": tokens, "labels": labels}

    # ------------------------------------------------------------ within documents

    def _rows_of(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of rows of documents of these lengths: enough to reach the end, each with a label.

        If the stride is at most the length, every token is in a row.
        """
        more = np.maximum(lengths - 1 - self.length, 0)
        return np.where(lengths > 1, 1 + np.minimum(-(-more // self.stride), (lengths - 2) // self.stride), 0)

    def _counted(self) -> NDArray[np.int64]:
        """Return the number of rows before every `COUNTED_TOGETHER`th document, and the total."""
        num_documents = self._tokens.num_documents
        sums = [0]
        step = 256 * COUNTED_TOGETHER
        for first in range(0, num_documents, step):
            offsets = offsets_of(self._tokens)(first, min(first + step, num_documents))
            check_offsets(offsets, first, self._tokens.num_values)
            rows = self._rows_of(np.diff(offsets))
            sums.extend(np.add.reduceat(rows, np.arange(0, len(rows), COUNTED_TOGETHER)).tolist())
        return np.cumsum(np.array(sums, np.int64))

    def _places(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the start of each row, and the end of its document."""
        assert self._firsts is not None
        starts, stops = np.empty_like(numbers), np.empty_like(numbers)
        groups = self._firsts.searchsorted(numbers, "right") - 1
        for group in sorted(set(groups.tolist())):
            at = np.flatnonzero(groups == group)
            first = group * COUNTED_TOGETHER
            offsets = offsets_of(self._tokens)(first, min(first + COUNTED_TOGETHER, self._tokens.num_documents))
            check_offsets(offsets, first, self._tokens.num_values)
            ends = np.cumsum(self._rows_of(np.diff(offsets)))
            within = numbers[at] - self._firsts[group]
            documents = ends.searchsorted(within, "right")
            before = np.where(documents > 0, ends[documents - 1], 0)
            starts[at] = offsets[documents] + (within - before) * self.stride
            stops[at] = offsets[documents + 1]
        return starts, stops

    def _within(self, numbers: NDArray[np.int64], empty: Empty) -> dict[str, NDArray[Any]]:
        starts, stops = self._places(numbers)
        # Windows at the very end would exceed the tokens: they are read from further back, and shifted.
        length = min(self.length + 1, self._tokens.num_values)
        begins = np.minimum(starts, self._tokens.num_values - length)
        found = self._tokens.windows(begins, length)
        rows = np.full((len(numbers), self.length + 1), self.pad, self.dtype)
        sizes = np.minimum(stops - starts, self.length + 1)
        for at, (shift, size) in enumerate(zip((starts - begins).tolist(), sizes.tolist())):
            rows[at, :size] = found[at, shift : shift + size]
        batch = self._split(rows, empty)
        has_no_label = np.arange(self.length) >= (sizes - 1)[:, None]
        batch["labels"][has_no_label] = self.ignored
        return batch
