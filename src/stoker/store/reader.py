"""A store, read: samples and columns by position, from any number of shards, at the speed of memory.

Every file is mapped when it is first needed, and every block checked when it is first read, by each process for itself;
the pages are shared. Nothing is built when a store is opened: it costs the reading of its manifest.
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
from stoker.native import ArrayParts
from stoker.store.column import OFFSETS, Column
from stoker.store.crops import IGNORED, Crops
from stoker.store.expectation import check_expectations
from stoker.store.files import Files, Places
from stoker.store.generations import held_manifest, name_of
from stoker.store.manifest import FILE
from stoker.store.positions import Positions, one_position


def open_store(path: str | os.PathLike[str], *, expect: Mapping[str, Any] | None = None, check: bool = True) -> Store:
    """Open a store. `expect` names what it must have been made with; otherwise it is refused.

    With `check=False` blocks are not compared with their checksums when they are first read.
    """
    return Store(path, expect=expect, check=check)


class Store:
    """A dataset on disk. Safe to use from threads, after a fork, and in processes it is sent to (as its path)."""

    is_pure = True
    """Reading draws no random numbers: a loader need not see to any generator."""

    def __init__(
        self, path: str | os.PathLike[str], *, expect: Mapping[str, Any] | None = None, check: bool = True
    ) -> None:
        self._open(Path(path).absolute(), FILE, check=check)
        if expect is not None:
            self.expect(expect)

    def _open(self, path: Path, name: str, *, check: bool) -> None:
        """Read the manifest of this name; its shards stay for as long as this store is there."""
        self.path = path
        self.manifest, self._hold = held_manifest(path, name)
        self._is_checked = check
        self._files = Files(self.path, self.manifest, is_checked=check)

    @property
    def columns(self) -> dict[str, Column]:
        """The columns by name."""
        return self.manifest.columns

    @property
    def meta(self) -> dict[str, Any]:
        """What whoever made the store had to say about it: tokenizer, settings, origin."""
        return self.manifest.meta

    @cached_property
    def fingerprint(self) -> str:
        """What tells this data from other data, wherever it lies: a loader's state is refused with another."""
        return self.manifest.fingerprint()

    def earlier_fingerprints(self) -> Iterator[str]:
        """Yield the fingerprints that this data had before it grew at its end, as far as that may have been."""
        return self.manifest.earlier_fingerprints()

    def expect(self, settings: Mapping[str, Any]) -> None:
        """Raise `StoreMismatch` unless the store was made with these settings, saying what differs."""
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
            presented: list[Any] = []
            try:
                presented.extend(_presented(part, column) for part in parts)
            except UnicodeDecodeError as error:
                raise self._files.not_text(name, rows, len(presented)) from error
            listed.append(presented)
        return [dict(zip(self.columns, sample)) for sample in zip(*listed)]

    def __getbatch__(self, positions: Positions, empty: Any) -> Any:
        """Return a whole batch as a table of arrays, gathered straight into memory from `empty(shape, dtype)`.

        NotImplemented where columns are ragged: those make no batch by themselves.
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
        """Return a fixed column's values at `positions` as one array, or put them into `out`, of any type that fits."""
        self._column(column, is_ragged=False)
        return self._files.fixed(column, self._files.rows(positions), out=out)

    def read_ragged(self, column: str, positions: Positions) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return a ragged column's values at `positions`, one after the other, and how many each sample has."""
        self._column(column, is_ragged=True)
        return self._files.ragged(column, self._files.rows(positions))

    def lengths(self, column: str, positions: Positions) -> NDArray[np.int64]:
        """Return how many values the samples at `positions` have in a ragged column, without reading those."""
        self._column(column, is_ragged=True)
        return self._files.bounds(column, self._files.rows(positions))[1]

    def _column(self, name: str, *, is_ragged: bool) -> Column:
        column = self.columns.get(name)
        if column is None:
            raise ArgumentError(f"{self.path} has no column {name!r}", hint=f"it has {', '.join(self.columns)}")
        if column.is_ragged != is_ragged:
            raise ArgumentError(
                f"{name!r} is {'ragged' if column.is_ragged else 'of a fixed shape'}",
                hint="use read_ragged for ragged columns and read for the others",
            )
        return column

    def stretch(self, column: str = "tokens") -> Stretch:
        """Return all values of a ragged column, one after the other over all shards."""
        self._column(column, is_ragged=True)
        return Stretch(self, column)

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
        """Return rows of `length` tokens with the next tokens as labels; see `stoker.store.Crops` for what they are.

        `pad` is by default the token that ends documents.
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
        """Return in which file a sample is, and at which place."""
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
        raise StaleSource(path, what="the store was prepared anew meanwhile") from error
    return earlier


def _presented(values: NDArray[Any], column: Column) -> Any:
    """Return a ragged sample as what its column holds."""
    if column.kind == "array":
        return values.copy()  # or a small sample that is kept would keep all that were read with it
    data = values.tobytes()
    return data if column.kind == "bytes" else data.decode("utf-8", "strict")


class _Course:
    """Where windows of one length are in the space of all shards, once these are mapped.

    Starts are looked up among the borders of the shards and of the starts that do not fit into them any more, in turn:
    an odd number of borders before a start tells that its window lies in one shard.
    """

    def __init__(self, value_starts: NDArray[np.int64], elements: NDArray[np.int64], length: int) -> None:
        first, ends = value_starts[:-1], value_starts[1:]
        ends = np.maximum(first, ends - length + 1)
        self._borders = np.stack([first, ends], 1).reshape(-1)
        self._shifts = np.zeros(2 * len(first) + 1, np.int64)
        self._shifts[1::2] = elements - first

    def elements(self, starts: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return the elements of the space that windows begin with; None if one is not in one shard, or nowhere."""
        found = self._borders.searchsorted(starts, "right")
        if not np.bitwise_and.reduce(found) & 1:
            return None
        shifts: NDArray[np.int64] = self._shifts[found]
        shifts += starts
        return shifts


_FIRST = np.zeros(1, np.int64)


class Stretch:
    """The values of a ragged column as one stretch over all shards, and the borders of the samples in it."""

    refuses = True
    """Windows that are out of range are an error, at no cost; callers need not look."""

    def __init__(self, store: Store, column: str) -> None:
        self._store, self._column, self._files = store, column, store._files
        self._value_starts = self._files.value_starts[column]
        self.num_values = int(self._value_starts[-1])
        self.num_documents = len(store)
        self.dtype = store.columns[column].numpy
        if store.columns[column].shape:
            raise ArgumentError(f"the values of {column!r} are not single numbers", hint="tokens have no shape")
        self._num_values = np.diff(self._value_starts)
        self._courses: dict[int, _Course] = {}

    def windows(self, starts: NDArray[np.int64], length: int) -> NDArray[Any]:
        """Return `length` values from each of `starts` on, a row for each: a fresh array. All must be in range."""
        course = self._courses.get(length)
        if course is not None:
            elements = course.elements(starts)
            if elements is not None:
                return self._files.gathered(self._column, elements, length)
        elif self._files.all_mapped:
            self._courses[length] = _Course(self._value_starts, self._files.elements(self._column), length)
        return self._looked_up(starts, length)

    def check(self) -> None:
        """Raise `StaleSource` if a shard that is mapped has changed. For readers of memory that they got before."""
        self._files.watch.check()

    def lying(self, starts: NDArray[np.int64], length: int) -> tuple[NDArray[Any], NDArray[np.int64]] | None:
        """Return memory in which windows lie as they are, checked, and where in it each begins, without a copy.

        None where it is not that simple, or not known to be: `windows` gives them, or says what is wrong.
        """
        course = self._courses.get(length)
        elements = None if course is None else course.elements(starts)
        if elements is None or not elements.size:
            return None
        self._files.seen_alike(self._column, elements, length)
        return self._files.flat(self._column), elements

    def _looked_up(self, starts: NDArray[np.int64], length: int) -> NDArray[Any]:
        """Do the same where starts may be out of range, rows cross from shard to shard, or nothing is mapped."""
        files, column, value_starts = self._files, self._column, self._value_starts
        if starts.size and (int(starts.min()) < 0 or int(starts.max()) + length > self.num_values):
            raise ArgumentError(f"not all windows are within {self.num_values} values", hint="check the starts")
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
        """Read a row that lies in several shards."""
        at = 0
        while at < len(row):
            shard = int(self._value_starts.searchsorted(start + at, "right")) - 1
            size = min(len(row) - at, int(self._value_starts[shard + 1]) - start - at)
            element = self._files.element_of(self._column, np.array([shard])) + (start + at - self._value_starts[shard])
            row[at : at + size] = self._files.gathered(self._column, element, size)[0]
            at += size

    @property
    def fingerprint(self) -> str:
        """What tells these values from others."""
        return f"{self._store.fingerprint}.{self._column}"

    def earlier_fingerprints(self) -> Iterator[str]:
        """Yield the fingerprints that these values had before the store grew."""
        return (f"{earlier}.{self._column}" for earlier in self._store.earlier_fingerprints())

    def expect(self, settings: Mapping[str, Any]) -> None:
        """Raise `StoreMismatch` unless the store was made with these settings."""
        self._store.expect(settings)

    @property
    def path(self) -> Path:
        """Where the store is."""
        return self._store.path

    @property
    def meta(self) -> dict[str, Any]:
        """What whoever made the store had to say about it."""
        return self._store.meta

    def take(self, values: NDArray[np.int64]) -> NDArray[Any]:
        """Return single values. All must be in range."""
        return self.windows(values, 1).reshape(-1)

    def borders(self, first: int, last: int) -> NDArray[np.int64]:
        """Return where samples `first` to `last` begin, in values; the one behind the last begins at the end."""
        borders = np.empty(last - first + 1, np.int64)
        starts = self._files.starts
        shard = int(starts.searchsorted(first, "right")) - 1
        at = first
        while at < last:
            stop = min(last, int(starts[shard + 1]))
            if stop > at:
                offsets = self._files.run(self._column + OFFSETS, shard, at - int(starts[shard]), stop - at + 1)
                self._check_offsets(offsets, shard, at)
                np.add(offsets[:-1], self._value_starts[shard], out=borders[at - first : stop - first])
            at, shard = stop, shard + 1
        borders[-1] = self.num_values if last == self.num_documents else self.bounds(np.array([last]))[0][0]
        return borders

    def _check_offsets(self, offsets: NDArray[np.int64], shard: int, first: int) -> None:
        """Refuse offsets that go back, or out of the shard."""
        num_values = self._value_starts[shard + 1] - self._value_starts[shard]
        # Compared and not subtracted: the difference of two offsets that are far out may look like a length.
        if offsets[0] < 0 or offsets[-1] > num_values or (offsets[1:] < offsets[:-1]).any():
            documents = np.arange(first, first + len(offsets) - 1)
            self._files.bounds(
                self._column, Places(np.full(len(documents), shard), documents - self._files.starts[shard])
            )

    def bounds(self, documents: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where samples begin, in values, and how many they have. All must be there."""
        files, offsets = self._files, self._column + OFFSETS
        starts = files.starts
        if documents.size and int(documents.view(np.uint64).max()) >= self.num_documents:
            raise ArgumentError(f"not all are among {self.num_documents} samples", hint="check the numbers")
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
        # Any that is negative shows in the sign of them all. Where the first two are not, no difference overflows.
        signs = num_values - ends
        signs |= sizes
        signs |= begins
        signs |= ends
        if signs.size and int(signs.min()) < 0:
            files.bounds(self._column, files.rows(documents))  # tells which
        if shards is not None:
            begins = begins + self._value_starts[shards]
        return begins, sizes

    def spans(self, begins: NDArray[np.int64], sizes: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return memory in which all values are, and where in it those stretches begin that `bounds` told of.

        `sizes`, at least 1 each, is how many are going to be read from each of `begins` on, all of one shard, and
        nothing else must be: they are mapped and checked now.
        """
        files, column, value_starts = self._files, self._column, self._value_starts
        if not begins.size:
            return np.empty(0, self.dtype), begins
        # As unsigned numbers those that are negative are far out.
        if int(begins.view(np.uint64).max()) >= self.num_values:
            raise ArgumentError("not all stretches are within a shard", hint="check their begins and sizes")
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
            raise ArgumentError("not all stretches are within a shard", hint="check their begins and sizes")
        files.seen(column, elements, sizes)
        return files.flat(column), elements

    def parts(self) -> ArrayParts | None:
        """Return where the values lie, for functions in C; None where these cannot know that it was checked."""
        return self._files.parts(self._column, self._value_starts)

    def offset_parts(self) -> ArrayParts | None:
        """Return the same of where the samples of each shard begin, counted from the shard's first value."""
        return self._files.parts(self._column + OFFSETS, self._files.starts)

    def documents_at(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which samples the values at these places belong to. All must be in range."""
        if values.size and (int(values.min()) < 0 or int(values.max()) >= self.num_values):
            raise ArgumentError(f"not all are within {self.num_values} values", hint="check the places")
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
            if ((within < offsets[found]) | (within >= offsets[found + 1])).any():  # they do not ascend, then
                self._check_offsets(offsets, shard, int(starts[shard]))
            documents[here] = found + starts[shard]
        return documents

    def __reduce__(self) -> tuple[Any, ...]:
        return Stretch, (self._store, self._column)
