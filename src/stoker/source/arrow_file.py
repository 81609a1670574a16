"""Rows of Arrow IPC files, memory-mapped: the stream format, and the file format, which wraps a stream.

Layout of a stream: a schema, record batches, an end mark. The file format adds the magic `ARROW1` and padding (8 bytes)
before, and a footer, its length (4 bytes) and the magic after it. Reading a row touches only its batch, and in it only
that row; opening reads the metadata of each batch, to count the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError, DamagedFile
from stoker.source.arrow_rows import arrow_library, picked, refusals, samples_in
from stoker.source.known_file import KnownFile
from stoker.source.mapped_files import MappedFiles
from stoker.source.recent import Recent

FILE_MAGIC = b"ARROW1"
STREAM_MAGIC = b"\xff\xff\xff\xff"

_END_MARKS = (b"\xff\xff\xff\xff\0\0\0\0", b"\0\0\0\0")  # since Arrow 0.15, and before

# For compressed files: mapped batches take no memory.
_CACHE_BYTES = 64 << 20


class RecordBatches(NamedTuple):
    """The record batches of a file: for each the number of rows up to its end, and its byte range."""

    ends: NDArray[np.int64]
    begin_bytes: NDArray[np.int64]
    end_bytes: NDArray[np.int64]


class ArrowFiles:
    """The rows of Arrow files with the same schema. Threads, forks, pickling: as `MappedFiles`.

    Opening costs some microseconds per record batch. Data is validated before it is read: damage that Arrow detects
    raises `DamagedFile`, and offsets outside the data are never followed.
    """

    def __init__(self, files: Sequence[KnownFile]) -> None:
        arrow_library("reading Arrow files")
        mapped = MappedFiles(files)
        walked = [_walk(file, mapped[number].content) for number, file in enumerate(files)]
        schema = walked[0][0]
        for file, (other, _) in zip(files, walked):
            if not other.equals(schema):
                ours, theirs = (one.to_string(show_schema_metadata=False) for one in (schema, other))
                raise ArgumentError(
                    f"{files[0].path} and {file.path} have different columns:\n{ours}\nand\n{theirs}",
                    hint="open them separately, or write them again with one schema",
                )
        self._set(mapped, schema, [batches for _, batches in walked])

    def _set(self, mapped: MappedFiles, schema: Any, batches: Sequence[RecordBatches]) -> None:
        self._mapped, self.schema, self._batches = mapped, schema, batches
        counts = [int(one.ends[-1]) if len(one.ends) else 0 for one in batches]
        self._ends = np.cumsum(counts, dtype=np.int64)
        self.num_rows = int(self._ends[-1])
        self._recent: Recent[tuple[int, int], Any] = Recent(_CACHE_BYTES)

    def __getstate__(self) -> tuple[MappedFiles, bytes, Sequence[RecordBatches]]:
        return self._mapped, self.schema.serialize().to_pybytes(), self._batches

    def __setstate__(self, state: tuple[MappedFiles, bytes, Sequence[RecordBatches]]) -> None:
        pa = arrow_library("reading Arrow files")
        mapped, schema, batches = state
        self._set(mapped, pa.ipc.read_schema(pa.py_buffer(schema)), batches)

    @property
    def files(self) -> tuple[KnownFile, ...]:
        """The files, in order."""
        return self._mapped.files

    def place_of(self, position: int) -> tuple[int, int]:
        """Return the number of a row's file, and the row's number there."""
        number = int(np.searchsorted(self._ends, position, side="right"))
        return number, position - (int(self._ends[number - 1]) if number else 0)

    def read(self, positions: NDArray[np.int64], columns: list[str]) -> list[dict[str, Any]]:
        """Return the rows at `positions`, which exist, in that order; they are read in the order on disk."""
        order = np.argsort(positions, kind="stable")
        parts: list[Any] = []
        for number, rows in _groups(self._ends, positions[order]):
            content = self._mapped[number].content
            for batch, local in _groups(self._batches[number].ends, rows):
                parts.append(self._part(number, batch, content, local, columns))
        samples: list[Any] = [None] * len(positions)
        if len(positions):
            first = self.files[self.place_of(int(positions[order[0]]))[0]]
            with refusals(first, "in one of its rows, or in the files behind it"):
                # all rows at once, because each column of each part has a cost of many rows
                for slot, sample in zip(order.tolist(), samples_in(parts)):
                    samples[slot] = sample
            self._mapped.check()
        return samples

    def _part(
        self, number: int, batch: int, content: NDArray[np.uint8], rows: NDArray[np.int64], columns: list[str]
    ) -> Any:
        """Return rows of a record batch, given in ascending order, as a validated record batch."""
        with refusals(self.files[number], f"in record batch {batch}"):
            found = self._recent.get((number, batch), lambda: self._batch(number, batch, content))
            first, last = int(rows[0]), int(rows[-1])
            # Validate only the part that is read, but completely: offsets, and UTF-8.
            part = (found if columns == self.schema.names else found.select(columns)).slice(first, last - first + 1)
            part.validate(full=True)
            return part if len(rows) == 1 else picked(part, rows - first)

    def _batch(self, number: int, batch: int, content: NDArray[np.uint8]) -> tuple[Any, int]:
        import pyarrow as pa

        known = self._batches[number]
        part = content[known.begin_bytes[batch] : known.end_bytes[batch]]
        found = pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(part)), self.schema)
        found.validate()
        rows = int(known.ends[batch] - (known.ends[batch - 1] if batch else 0))
        if found.num_rows != rows:
            raise pa.ArrowInvalid(f"it had {rows} rows and has {found.num_rows}")
        return found, found.get_total_buffer_size()


def _groups(ends: NDArray[np.int64], places: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
    """Group ascending places by part, given the ends of the parts; return (part, places relative to its begin)."""
    if not len(places):
        return []
    parts = np.searchsorted(ends, places, side="right")
    cuts = [0, *(np.flatnonzero(parts[1:] != parts[:-1]) + 1).tolist(), len(parts)]
    found = []
    for begin, end in pairwise(cuts):
        part = int(parts[begin])
        found.append((part, places[begin:end] - (ends[part - 1] if part else 0)))
    return found


def _walk(file: KnownFile, content: NDArray[np.uint8]) -> tuple[Any, RecordBatches]:
    """Return the schema of a file, and its record batches."""
    import pyarrow as pa

    is_file = content[: len(FILE_MAGIC)].tobytes() == FILE_MAGIC
    reader = pa.BufferReader(pa.py_buffer(content))
    schema = None
    rows: list[int] = []
    places: list[tuple[int, int]] = []
    with refusals(file, "as Arrow data"):
        reader.seek(8 if is_file else 0)
        messages = pa.ipc.MessageReader.open_stream(reader)
        while True:
            begin = reader.tell()
            try:
                message = messages.read_next_message()
            except StopIteration:
                break
            if message.type == "schema" and schema is None:
                schema = pa.ipc.read_schema(message)
                _ = schema.names  # force decoding, which is lazy
            elif message.type == "record batch" and schema is not None:
                rows.append(pa.ipc.read_record_batch(message, schema).num_rows)
                places.append((begin, reader.tell()))
            elif message.type == "dictionary":
                raise ArgumentError(
                    f"{file.path} has dictionary-encoded columns, whose rows cannot be read at any position",
                    hint="write it again with plain values, such as column.cast(column.type.value_type), or as Parquet",
                )
            else:
                raise pa.ArrowInvalid(f"a message of type {message.type} at byte {begin}")
    if schema is None:
        raise DamagedFile(file.path, what="is empty or has no schema: it is not Arrow data, or truncated")
    _check_end(file, content, begin, is_file)
    if any(count < 0 for count in rows):
        raise DamagedFile(file.path, what="has a record batch with a negative number of rows")
    begins, ends = np.array(places, dtype=np.int64).reshape(-1, 2).T
    return schema, RecordBatches(np.cumsum(rows, dtype=np.int64), begins.copy(), ends.copy())


def _check_end(file: KnownFile, content: NDArray[np.uint8], at: int, is_file: bool) -> None:
    """Raise `DamagedFile` unless the stream ends with its mark, at the end of the file or before the footer.

    Arrow accepts a stream that was truncated between two record batches.
    """
    mark = next((mark for mark in _END_MARKS if content[at : at + len(mark)].tobytes() == mark), None)
    end = None if mark is None else at + len(mark)
    if end is not None and is_file:
        # footer, its length (4 bytes) and the magic (6 bytes)
        tail = content[-10:].tobytes()
        end = end + int.from_bytes(tail[:4], "little") + 10 if tail.endswith(FILE_MAGIC) else None
    if end != file.size_bytes:
        raise DamagedFile(
            file.path,
            what=f"has no end mark at byte {at}, or more data after it",
            hint="it is truncated, or still being written; copy or create the file again",
        )
