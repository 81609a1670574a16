"""Rows of Parquet files as samples, read by row group."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, SupportsIndex, final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError, DamagedFile
from stoker.foundation.positions import position_in, positions_in
from stoker.source.arrow_rows import arrow_library, chosen_columns, picked, refusals, samples_in
from stoker.source.known_file import KnownFile, Paths, files_at, fingerprint_of, named
from stoker.source.recent import Recent

MAGIC = b"PAR1"

# The footer of a hundred row groups takes some hundred kilobytes.
_FOOTERS_BYTES = 8 << 20


class _RowGroups(NamedTuple):
    """The row groups of all files, in order."""

    ends: NDArray[np.int64]
    """Number of rows up to the end of each row group."""
    file: NDArray[np.int32]
    first: NDArray[np.int64]
    """For each file, the number of its first row group."""


@final
class Parquet:
    """The rows of Parquet files, addressed by position. Opening reads only the footers.

    `paths` is a file, a pattern, a folder of `.parquet` files, or a list of these. `columns` are those to read, by
    default all.

    A sample is a dict by column. Numbers, strings, bytes and booleans are Python's; null is None. A list of numbers is
    a new NumPy array, writable; so is a list of lists of equal length. A struct is a dict, any other list a list.

    Parquet is decoded by complete row groups. The latest are cached, up to `cache_bytes` in each process, and one call
    decodes each row group once. So rows in order, or shuffled within windows, are read fast; a fully random order
    decodes one row group per row, and needs a store instead (`stoker prepare`).

    A damaged file raises `DamagedFile`, one that changed since it was opened `StaleSource`. Thread-safe; pickles as its
    paths and the number of rows in each row group; no descriptor stays open; works after a fork and in spawned
    processes.
    """

    def __init__(
        self, paths: Paths, *, columns: Sequence[str] | str | None = None, cache_bytes: int = 128 << 20
    ) -> None:
        arrow_library("reading Parquet files")
        files = files_at(paths, suffixes=(".parquet", ".pq"))
        if cache_bytes < 0:
            raise ArgumentError(
                f"cache_bytes must not be negative, got {cache_bytes}", hint="0 keeps only the latest row group"
            )
        counts: list[int] = []
        owners: list[int] = []
        firsts: list[int] = []
        schema: Any = None
        names: list[str] = []
        for number, file in enumerate(files):
            footer = _footer(file)
            found = _schema(file, footer)
            if schema is None:
                schema, names = found, chosen_columns(found.names, columns, file.path)
            _check_columns(files[0], schema, file, found, names)
            firsts.append(len(counts))
            counts.extend(_row_counts(file, footer))
            owners.extend([number] * (len(counts) - firsts[-1]))
        groups = _RowGroups(np.cumsum(counts, dtype=np.int64), np.array(owners, np.int32), np.array(firsts, np.int64))
        self._set(files, groups, names, cache_bytes)

    def _set(self, files: tuple[KnownFile, ...], groups: _RowGroups, columns: list[str], cache_bytes: int) -> None:
        self._files, self._groups, self._columns, self._cache_bytes = files, groups, columns, cache_bytes
        self._num_rows = int(groups.ends[-1]) if len(groups.ends) else 0
        self._tables: Recent[int, Any] = Recent(cache_bytes)
        self._footers: Recent[int, Any] = Recent(_FOOTERS_BYTES)

    def __getstate__(self) -> tuple[tuple[KnownFile, ...], _RowGroups, list[str], int]:
        return self._files, self._groups, self._columns, self._cache_bytes

    def __setstate__(self, state: tuple[tuple[KnownFile, ...], _RowGroups, list[str], int]) -> None:
        self._set(*state)

    def __repr__(self) -> str:
        return named("Parquet", self._files)

    @property
    def columns(self) -> list[str]:
        """The names of the columns that are read."""
        return list(self._columns)

    @property
    def files(self) -> tuple[KnownFile, ...]:
        """The files, in order."""
        return self._files

    @property
    def fingerprint(self) -> str:
        """Digest of the names, sizes and ends of the files, and of the columns."""
        return fingerprint_of(self._files, *self._columns)

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, position: SupportsIndex, /) -> dict[str, Any]:
        """Return the row at `position`; negative positions count from the end."""
        return self.__getitems__([position_in(position, len(self), self)])[0]

    def __getitems__(self, positions: Sequence[SupportsIndex], /) -> list[dict[str, Any]]:
        """Return the rows at `positions`, in that order; each row group is decoded once."""
        wanted = positions_in(positions, len(self), self)
        samples: list[Any] = [None] * len(wanted)
        groups = np.searchsorted(self._groups.ends, wanted, side="right")
        for group in np.unique(groups).tolist():
            slots = np.flatnonzero(groups == group)
            for slot, sample in zip(slots.tolist(), self._read(group, wanted[slots])):
                samples[slot] = sample
        return samples

    def describe(self, position: SupportsIndex) -> str:
        """Return the location of a sample: path, and row from 0."""
        place = position_in(position, len(self), self)
        group = int(np.searchsorted(self._groups.ends, place, side="right"))
        number = int(self._groups.file[group])
        row = place - self._begin(int(self._groups.first[number]))
        return f"{self._files[number].path}, row {row}"

    def _begin(self, group: int) -> int:
        """Return the position of the first row of a row group."""
        return int(self._groups.ends[group - 1]) if group else 0

    def _read(self, group: int, positions: NDArray[np.int64]) -> list[dict[str, Any]]:
        table = self._tables.get(group, lambda: self._decoded(group))
        with self._refusals(group):
            return samples_in([picked(table, positions - self._begin(group))])

    def _decoded(self, group: int) -> tuple[Any, int]:
        """Return the table of a row group and its size in memory."""
        import pyarrow as pa
        import pyarrow.parquet

        number = int(self._groups.file[group])
        file = self._files[number]
        footer = self._footers.get(number, lambda: _sized_footer(file))
        file.check_now()
        with self._refusals(group):
            # Opened for this read only: a reader is not thread-safe, and holds a descriptor. use_threads=False, because
            # the loader has many workers already. Page checksums are verified if the file has them.
            with pyarrow.parquet.ParquetFile(file.path, metadata=footer, page_checksum_verification=True) as reader:
                table = reader.read_row_group(
                    group - int(self._groups.first[number]), columns=self._columns, use_threads=False
                )
            table = table.select(self._columns)  # in the requested order, and without nested columns of the same name
            table.validate()
            rows = int(self._groups.ends[group]) - self._begin(group)
            if table.num_rows != rows:
                raise pa.ArrowInvalid(f"it should have {rows} rows and has {table.num_rows}")
        return table, table.nbytes

    def _refusals(self, group: int) -> AbstractContextManager[None]:
        number = int(self._groups.file[group])
        return refusals(self._files[number], f"in row group {group - int(self._groups.first[number])}")


def _footer(file: KnownFile) -> Any:
    """Return the metadata of a file."""
    import pyarrow.parquet

    head = file.head(len(MAGIC))
    if head == b"PARE":
        raise ArgumentError(f"{file.path} is encrypted", hint="write it again without encryption")
    if head != MAGIC:
        found = f"its first bytes are {head.hex(' ')}" if head else "it is empty"
        raise DamagedFile(file.path, what=f"is not a Parquet file: {found}")
    with refusals(file, "as Parquet"):
        return pyarrow.parquet.read_metadata(file.path)


def _sized_footer(file: KnownFile) -> tuple[Any, int]:
    footer = _footer(file)
    return footer, footer.serialized_size


def _schema(file: KnownFile, footer: Any) -> Any:
    with refusals(file, "in its schema"):
        schema = footer.schema.to_arrow_schema()
        _ = schema.names  # force decoding, which is lazy
        return schema


def _row_counts(file: KnownFile, footer: Any) -> list[int]:
    counts = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
    if any(count < 0 for count in counts) or sum(counts) != footer.num_rows:
        raise DamagedFile(
            file.path, what=f"has row groups of {sum(counts)} rows together, and its footer says {footer.num_rows}"
        )
    return counts


def _check_columns(first: KnownFile, schema: Any, file: KnownFile, found: Any, names: Sequence[str]) -> None:
    for name in names:
        theirs = found.field(name).type if name in found.names else "nothing"
        if theirs != schema.field(name).type:
            raise ArgumentError(
                f"column {name!r} is {schema.field(name).type} in {first.path} and {theirs} in {file.path}",
                hint="open them separately, or pass columns= with those that agree",
            )
