"""Read a store: samples and columns by position, from any number of shards, at the speed of memory.

Each process maps a file when it first needs it, and verifies a block when it first reads it; processes share the pages.
Opening a store only reads its manifest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from stoker.errors import ArgumentError, DataError, StaleSource
from stoker.foundation.positions import Positions, one_position
from stoker.native import ArrayParts
from stoker.store.column import OFFSETS, Column
from stoker.store.crops import IGNORED, Crops
from stoker.store.expectation import check_expectations
from stoker.store.files import MappedShards, SampleLocations
from stoker.store.generations import lock_manifest, name_of
from stoker.store.manifest import FILE


def open_store(path: str | os.PathLike[str], *, expect: Mapping[str, Any] | None = None, check: bool = True) -> Store:
    """Open a store. `expect` contains settings that it must have been made with; otherwise `StoreMismatch` is raised.

    With `check=False` blocks are not verified when they are first read.
    """
    return Store(path, expect=expect, check=check)


class Store:
    """A dataset on disk. Thread-safe, works after a fork, and pickles as its path."""

    is_pure = True
    """Reading draws no random numbers, so that the loader need not seed generators."""

    def __init__(
        self, path: str | os.PathLike[str], *, expect: Mapping[str, Any] | None = None, check: bool = True
    ) -> None:
        self._open(Path(path).absolute(), FILE, check=check)
        if expect is not None:
            self.expect(expect)

    def _open(self, path: Path, name: str, *, check: bool) -> None:
        """Read the manifest of this name; its shards are kept as long as this object lives."""
        self.path = path
        self.manifest, self._lock = lock_manifest(path, name)
        self._is_checked = check
        self._files = MappedShards(self.path, self.manifest, is_checked=check)

    @property
    def columns(self) -> dict[str, Column]:
        """The columns by name."""
        return self.manifest.columns

    @property
    def meta(self) -> dict[str, Any]:
        """Metadata of the store: tokenizer, settings, origin."""
        return self.manifest.meta

    @cached_property
    def fingerprint(self) -> str:
        """Identity of the data, independent of its location. A loader's state is only valid for the same one."""
        return self.manifest.fingerprint()

    def earlier_fingerprints(self) -> Iterator[str]:
        """Yield the fingerprints that this data may have had before it grew at its end."""
        return self.manifest.earlier_fingerprints()

    def expect(self, settings: Mapping[str, Any]) -> None:
        """Raise `StoreMismatch`, with the differences, unless the store was made with these settings."""
        check_expectations(self.path, self.manifest, settings)

    def __len__(self) -> int:
        return self._files.num_samples

    def __getitem__(self, position: int) -> dict[str, Any]:
        return self.__getitems__([one_position(position)])[0]

    def __getitems__(self, positions: Positions) -> list[dict[str, Any]]:
        """Return the samples at `positions`, in that order; one read for all."""
        rows = self._files.rows(positions)
        listed: list[list[Any]] = []
        for name, column in self.columns.items():
            if not column.is_ragged:
                listed.append(list(self._files.fixed(name, rows)))
                continue
            values, lengths = self._files.ragged(name, rows)
            stops = np.cumsum(lengths)
            parts = [values[stop - length : stop] for stop, length in zip(stops.tolist(), lengths.tolist())]
            converted: list[Any] = []
            try:
                converted.extend(_to_kind(part, column) for part in parts)
            except UnicodeDecodeError as error:
                raise self._files.not_text(name, rows, len(converted)) from error
            listed.append(converted)
        return [dict(zip(self.columns, sample)) for sample in zip(*listed)]

    def __getbatch__(self, positions: Positions, empty: Any) -> Any:
        """Return a whole batch as a dict of arrays, gathered directly into memory from `empty(shape, dtype)`.

        NotImplemented if columns are ragged, because those need a collate function.
        """
        if any(column.is_ragged for column in self.columns.values()):
            return NotImplemented
        rows = self._files.rows(positions)
        batch = {}
        for name, column in self.columns.items():
            out = empty((len(rows.within), *column.shape), column.dtype)
            self._files.fixed(name, rows, out=out)
            batch[name] = out
        return batch

    def read(self, column: str, positions: Positions, *, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return a fixed column's values at `positions` as one array, or write them to `out`, if its dtype fits."""
        self._column(column, is_ragged=False)
        return self._files.fixed(column, self._files.rows(positions), out=out)

    def read_ragged(self, column: str, positions: Positions) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return a ragged column's values at `positions`, concatenated, and the number of values of each sample."""
        self._column(column, is_ragged=True)
        return self._files.ragged(column, self._files.rows(positions))

    def lengths(self, column: str, positions: Positions) -> NDArray[np.int64]:
        """Return the number of values of the samples at `positions` in a ragged column, without reading the values."""
        self._column(column, is_ragged=True)
        return self._files.bounds(column, self._files.rows(positions))[1]

    def _column(self, name: str, *, is_ragged: bool) -> Column:
        column = self.columns.get(name)
        if column is None:
            raise ArgumentError(f"{self.path} has no column {name!r}", hint=f"it has {', '.join(self.columns)}")
        if column.is_ragged != is_ragged:
            raise ArgumentError(
                f"column {name!r} {'is ragged' if column.is_ragged else 'has a fixed shape'}",
                hint="use read_ragged for ragged columns and read for the others",
            )
        return column

    def stretch(self, column: str = "tokens") -> ColumnValues:
        """Return all values of a ragged column as one sequence over all shards."""
        self._column(column, is_ragged=True)
        return ColumnValues(self, column)

    def tokens(
        self,
        length: int = 2048,
        *,
        stride: int | None = None,
        across: bool = True,
        dtype: DTypeLike | None = "int64",
        shared: bool = False,
        pad: int | None = None,
        ignored: int = IGNORED,
        column: str = "tokens",
    ) -> Crops:
        """Return rows of `length` tokens with the next tokens as labels; see `stoker.store.Crops`.

        `pad` is by default the end-of-document token.
        """
        if pad is None:
            tokenizer = self.meta.get("tokenizer")
            pad = (tokenizer.get("end_of_document") if isinstance(tokenizer, dict) else None) or 0
        return Crops(
            self.stretch(column),
            length=length,
            stride=stride,
            across=across,
            dtype=dtype,
            shared=shared,
            pad=pad,
            ignored=ignored,
        )

    def describe(self, position: int) -> str:
        """Return the file of a sample, and its number there."""
        rows = self._files.rows([position])
        return f"{self.path / self.manifest.shards[int(rows.shards[0])].file} sample {int(rows.within[0])}"

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {column.described()}" for name, column in self.columns.items())
        return f"<Store {self.path} of {len(self):,} samples ({columns})>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (str(self.path), self._is_checked, self.fingerprint)


def _reopened(path: str, is_checked: bool, fingerprint: str) -> Store:
    store = Store(path, check=is_checked)
    if store.fingerprint == fingerprint:
        return store
    earlier = object.__new__(Store)
    try:
        earlier._open(Path(path), name_of(fingerprint), check=is_checked)
    except DataError as error:
        raise StaleSource(path, what="the store was prepared again meanwhile") from error
    return earlier


def _to_kind(values: NDArray[Any], column: Column) -> Any:
    """Return a ragged sample as the type of its column: an array, bytes or str."""
    if column.kind == "array":
        return values.copy()  # or keeping a small sample would keep everything read with it
    data = values.tobytes()
    return data if column.kind == "bytes" else data.decode("utf-8", "strict")


class _WindowIndex:
    """Locations of windows of one length in the address space of all shards, once these are mapped.

    For each shard `i` two bounds: its first value, and the first start whose window would reach beyond its end. A start
    is looked up among all bounds in order: an odd number of bounds at or before it means that its window lies in one
    shard, number `found // 2`. `_shifts[found]` then converts a value into an element of the space.
    """

    def __init__(self, value_starts: NDArray[np.int64], elements: NDArray[np.int64], length: int) -> None:
        first, ends = value_starts[:-1], value_starts[1:]
        ends = np.maximum(first, ends - length + 1)
        self._bounds = np.stack([first, ends], 1).reshape(-1)
        self._shifts = np.zeros(2 * len(first) + 1, np.int64)
        self._shifts[1::2] = elements - first

    def elements(self, starts: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return the first element of each window in the space; None if one crosses shards or is out of range."""
        found = self._bounds.searchsorted(starts, "right")
        if not np.bitwise_and.reduce(found) & 1:
            return None
        shifts: NDArray[np.int64] = self._shifts[found]
        shifts += starts
        return shifts


_FIRST = np.zeros(1, np.int64)


class ColumnValues:
    """The values of a ragged column as one sequence over all shards, and the offsets of its samples."""

    checks_range = True
    """`windows` raises an error for windows out of range, so callers need not check."""

    def __init__(self, store: Store, column: str) -> None:
        self._store, self._column, self._files = store, column, store._files
        self._value_starts = self._files.value_starts[column]
        self.num_values = int(self._value_starts[-1])
        self.num_documents = len(store)
        self.dtype = store.columns[column].numpy
        if store.columns[column].shape:
            raise ArgumentError(
                f"the values of {column!r} are not scalars", hint="tokens are a column such as 'uint16[*]'"
            )
        self._num_values = np.diff(self._value_starts)
        self._window_indexes: dict[int, _WindowIndex] = {}

    def windows(self, starts: NDArray[np.int64], length: int) -> NDArray[Any]:
        """Return `length` values from each of `starts`, one row each, as a new array. All must be in range."""
        index = self._window_indexes.get(length)
        if index is not None:
            elements = index.elements(starts)
            if elements is not None:
                return self._files.gathered(self._column, elements, length)
        elif self._files.all_mapped:
            self._window_indexes[length] = _WindowIndex(self._value_starts, self._files.elements(self._column), length)
        return self._slow_windows(starts, length)

    def check(self) -> None:
        """Raise `StaleSource` if a mapped shard has changed. Call it after reading memory from `find_mapped`."""
        self._files.watch.check()

    def find_mapped(self, starts: NDArray[np.int64], length: int) -> tuple[NDArray[Any], NDArray[np.int64]] | None:
        """Return the mapped memory with these windows, verified, and the first element of each in it, without a copy.

        None if a window crosses shards, is out of range, or not everything is mapped yet: use `windows` then.
        """
        index = self._window_indexes.get(length)
        elements = None if index is None else index.elements(starts)
        if elements is None or not elements.size:
            return None
        self._files.seen_alike(self._column, elements, length)
        return self._files.flat(self._column), elements

    def _slow_windows(self, starts: NDArray[np.int64], length: int) -> NDArray[Any]:
        """Like `windows`, for starts that may be out of range, rows that cross shards, and unmapped shards."""
        files, column, value_starts = self._files, self._column, self._value_starts
        if starts.size and (int(starts.min()) < 0 or int(starts.max()) + length > self.num_values):
            raise ArgumentError(f"windows out of range: there are {self.num_values} values", hint="check the starts")
        shards = value_starts.searchsorted(starts, "right") - 1
        crosses = starts + length > value_starts[shards + 1]
        elements = files.element_of(column, shards) + (starts - value_starts[shards])
        if not crosses.any():
            return files.gathered(column, elements, length)
        rows = np.empty((len(starts), length), self.dtype)
        within = ~crosses
        rows[within] = files.gathered(column, elements[within], length)
        for at in np.flatnonzero(crosses).tolist():
            self._fill(rows[at], int(starts[at]))
        return rows

    def _fill(self, row: NDArray[Any], start: int) -> None:
        """Read a row that crosses shards."""
        at = 0
        while at < len(row):
            shard = int(self._value_starts.searchsorted(start + at, "right")) - 1
            size = min(len(row) - at, int(self._value_starts[shard + 1]) - start - at)
            element = self._files.element_of(self._column, np.array([shard])) + (start + at - self._value_starts[shard])
            row[at : at + size] = self._files.gathered(self._column, element, size)[0]
            at += size

    @property
    def fingerprint(self) -> str:
        """Identity of these values."""
        return f"{self._store.fingerprint}.{self._column}"

    def earlier_fingerprints(self) -> Iterator[str]:
        """Yield the fingerprints of these values before the store grew."""
        return (f"{earlier}.{self._column}" for earlier in self._store.earlier_fingerprints())

    def expect(self, settings: Mapping[str, Any]) -> None:
        """Raise `StoreMismatch` unless the store was made with these settings."""
        self._store.expect(settings)

    @property
    def path(self) -> Path:
        """Path of the store."""
        return self._store.path

    @property
    def meta(self) -> dict[str, Any]:
        """Metadata of the store."""
        return self._store.meta

    def take(self, values: NDArray[np.int64]) -> NDArray[Any]:
        """Return single values. All must be in range."""
        return self.windows(values, 1).reshape(-1)

    def offsets(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the offsets of samples `first` to `last` (inclusive); that after the last sample is the end."""
        found = np.empty(last - first + 1, np.int64)
        starts = self._files.starts
        shard = int(starts.searchsorted(first, "right")) - 1
        at = first
        while at < last:
            stop = min(last, int(starts[shard + 1]))
            if stop > at:
                offsets = self._files.run(self._column + OFFSETS, shard, at - int(starts[shard]), stop - at + 1)
                self._check_offsets(offsets, shard, at)
                np.add(offsets[:-1], self._value_starts[shard], out=found[at - first : stop - first])
            at, shard = stop, shard + 1
        found[-1] = self.num_values if last == self.num_documents else self.bounds(np.array([last]))[0][0]
        return found

    borders = offsets  # an earlier name, which users' wrappers may call

    def _check_offsets(self, offsets: NDArray[np.int64], shard: int, first: int) -> None:
        """Raise `DamagedFile` for offsets that decrease, or point outside the shard."""
        num_values = self._value_starts[shard + 1] - self._value_starts[shard]
        # Compared, not subtracted: the difference of two corrupt offsets could overflow and look like a length.
        if offsets[0] < 0 or offsets[-1] > num_values or (offsets[1:] < offsets[:-1]).any():
            documents = np.arange(first, first + len(offsets) - 1)
            self._files.bounds(
                self._column, SampleLocations(np.full(len(documents), shard), documents - self._files.starts[shard])
            )

    def bounds(self, documents: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the offset of each sample, and its number of values. All must exist."""
        files, offsets = self._files, self._column + OFFSETS
        starts = files.starts
        if documents.size and int(documents.view(np.uint64).max()) >= self.num_documents:
            raise ArgumentError(f"samples out of range: there are {self.num_documents}", hint="check the numbers")
        if len(starts) == 2:
            shards: NDArray[np.int64] | None = None
            pairs = files.gathered(offsets, documents + int(files.element_of(offsets, _FIRST)[0]), 2)
            num_values: Any = self.num_values
        else:
            shards = starts.searchsorted(documents, "right") - 1
            shifts = files.element_of(offsets, shards)
            shifts -= starts[shards]
            shifts += documents
            pairs = files.gathered(offsets, shifts, 2)
            num_values = self._num_values.take(shards)
        begins, ends = pairs[:, 0], pairs[:, 1]
        sizes = ends - begins
        # OR of the numbers that must not be negative: its sign is that of any of them. If offsets are not negative, the
        # differences cannot overflow.
        signs = num_values - ends
        signs |= sizes
        signs |= begins
        signs |= ends
        if signs.size and int(signs.min()) < 0:
            files.bounds(self._column, files.rows(documents))  # raises an error that names the sample
        if shards is not None:
            begins = begins + self._value_starts[shards]
        return begins, sizes

    def spans(self, begins: NDArray[np.int64], sizes: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the memory of all values, and the first element in it of each range returned by `bounds`.

        `sizes`, at least 1 each, are the numbers of values that will be read from `begins`, each within one shard: only
        these are mapped and verified now.
        """
        files, column, value_starts = self._files, self._column, self._value_starts
        if not begins.size:
            return np.empty(0, self.dtype), begins
        # As unsigned integers, negative numbers are out of range, too.
        if int(begins.view(np.uint64).max()) >= self.num_values:
            raise ArgumentError("a range is not within one shard", hint="check begins and sizes")
        if len(value_starts) == 2:
            elements = begins + int(files.element_of(column, _FIRST)[0])
            stops: Any = self.num_values
        else:
            shards = value_starts.searchsorted(begins, "right") - 1
            elements = files.element_of(column, shards)
            elements -= value_starts.take(shards)
            elements += begins
            shards += 1
            stops = value_starts.take(shards)
        room = stops - begins
        room -= sizes
        if int(room.min()) < 0:
            raise ArgumentError("a range is not within one shard", hint="check begins and sizes")
        files.seen(column, elements, sizes)
        return files.flat(column), elements

    def parts(self) -> ArrayParts | None:
        """Return the locations of the values, for functions in C; None if these could not know what was verified."""
        return self._files.parts(self._column, self._value_starts)

    def offset_parts(self) -> ArrayParts | None:
        """Like `parts`, for the offsets of the samples, which count from the first value of each shard."""
        return self._files.parts(self._column + OFFSETS, self._files.starts)

    def documents_at(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sample of each value. All must be in range."""
        if values.size and (int(values.min()) < 0 or int(values.max()) >= self.num_values):
            raise ArgumentError(f"values out of range: there are {self.num_values}", hint="check the numbers")
        shards = self._value_starts.searchsorted(values, "right") - 1
        documents = np.empty_like(values)
        starts = self._files.starts
        for shard in sorted(set(shards.tolist())):
            here = shards == shard
            num_samples = int(starts[shard + 1] - starts[shard])
            offsets = self._files.run(self._column + OFFSETS, shard, 0, num_samples + 1)
            within = values[here] - self._value_starts[shard]
            found = offsets.searchsorted(within, "right") - 1
            found = found.clip(0, num_samples - 1)
            if ((within < offsets[found]) | (within >= offsets[found + 1])).any():  # then offsets decrease somewhere
                self._check_offsets(offsets, shard, int(starts[shard]))
            documents[here] = found + starts[shard]
        return documents

    def __reduce__(self) -> tuple[Any, ...]:
        return ColumnValues, (self._store, self._column)
