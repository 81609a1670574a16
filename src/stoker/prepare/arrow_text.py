"""Read the text column of Parquet and Arrow files, part by part: a part is a row group or a record batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, Self

from stoker.prepare.inputs import Input
from stoker.source.arrow_rows import arrow_library

_BATCH_BYTES = 1 << 20
_MAX_BATCH_ROWS = 8192


class Unreadable(Exception):
    """The reason why a file, or a part of one, cannot be read. Internal to `stoker.prepare`."""


class ArrowTextFile:
    """An open Parquet or Arrow file. Damage and missing columns raise `Unreadable`."""

    def __init__(self, entry: Input) -> None:
        arrow_library(f"reading {entry.path}")
        self._entry = entry
        with open(entry.path, "rb") as file:
            entry.check(os.fstat(file.fileno()))
        opened = _guarded(lambda: _ParquetParts(entry.path) if entry.kind == "parquet" else _ArrowParts(entry.path))
        self._file: _ParquetParts | _ArrowParts = opened
        self.num_parts: int = self._file.num_parts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def first_row(self, part: int) -> int:
        """Return the number of rows before a part."""
        return self._file.first_row(part)

    def path_of(self, text_column: str) -> list[str]:
        """Return the path of names to the column: one, or several for a field of a nested column."""
        path: list[str] = _guarded(lambda: _find_column(self._file.schema, text_column))
        return path

    def texts(self, part: int, path: list[str]) -> Iterator[Any]:
        """Yield the column of a part in arrays of about a MiB of strings."""
        yield from _steps(self._file.arrays(part, path))

    def num_bytes(self, part: int, path: list[str]) -> int:
        """Return the approximate size of the text of a part."""
        num_bytes: int = _guarded(lambda: self._file.num_bytes(part, path))
        return num_bytes


class _ParquetParts:
    def __init__(self, path: str) -> None:
        import pyarrow.parquet as pq

        self._file: Any = pq.ParquetFile(path)
        self.schema = self._file.schema_arrow
        self._metadata = self._file.metadata
        self.num_parts = self._metadata.num_row_groups

    def first_row(self, part: int) -> int:
        return sum(self._metadata.row_group(number).num_rows for number in range(part))

    def num_bytes(self, part: int, path: list[str]) -> int:
        group = self._metadata.row_group(part)
        columns = [group.column(number) for number in range(group.num_columns)]
        return sum(column.total_uncompressed_size for column in columns if column.path_in_schema == ".".join(path))

    def arrays(self, part: int, path: list[str]) -> Iterator[Any]:
        num_rows = max(1, self._metadata.row_group(part).num_rows)
        row_bytes = max(1, self.num_bytes(part, path) // num_rows)
        batch_rows = max(1, min(_MAX_BATCH_ROWS, _BATCH_BYTES // row_bytes))
        batches = self._file.iter_batches(batch_rows, row_groups=[part], columns=[".".join(path)], use_threads=False)
        for batch in batches:
            yield _strings(batch, path)

    def close(self) -> None:
        self._file.close()


class _ArrowParts:
    """Record batches of the stream format (which Hugging Face writes) or the file format."""

    def __init__(self, path: str) -> None:
        import pyarrow as pa

        self._map = pa.memory_map(path)
        try:
            reader: Any
            if self._map.read(6) == b"ARROW1":
                reader = pa.ipc.open_file(self._map)
                self._batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
            else:
                self._map.seek(0)
                reader = pa.ipc.open_stream(self._map)
                self._batches = _read_stream(reader, self._map)
            self.schema = reader.schema
        except BaseException:
            self._map.close()
            raise
        self.num_parts = len(self._batches)

    def first_row(self, part: int) -> int:
        return sum(batch.num_rows for batch in self._batches[:part])

    def num_bytes(self, part: int, path: list[str]) -> int:
        column = _field(self._batches[part], path)
        column.validate()  # `nbytes` trusts the offsets
        return int(column.nbytes)

    def arrays(self, part: int, path: list[str]) -> Iterator[Any]:
        batch = self._batches[part]
        num_rows = max(1, batch.num_rows)
        step = max(1, min(_MAX_BATCH_ROWS, _BATCH_BYTES * num_rows // max(1, self.num_bytes(part, path))))
        for start in range(0, batch.num_rows, step):
            piece = batch.slice(start, step)
            _check_offsets(_field(piece, path))
            yield _strings(piece, path)

    def close(self) -> None:
        self._batches.clear()
        self._map.close()


def _read_stream(reader: Any, file: Any) -> list[Any]:
    """Return the record batches of a stream, as views of the memory map: no content is read yet.

    Arrow accepts a stream that was truncated between two batches, so the end mark is checked here.
    """
    import pyarrow as pa

    batches = []
    while True:
        end = file.tell()
        try:
            batches.append(reader.read_next_batch())
        except StopIteration:
            break
    file.seek(end)
    if not file.read(8).startswith((b"\xff\xff\xff\xff\0\0\0\0", b"\0\0\0\0")):  # since Arrow 0.15, and before
        raise pa.ArrowInvalid("the data ends without an end mark: the file is truncated")
    return batches


def _check_offsets(column: Any) -> None:
    """Raise Arrow's error if offsets point outside the data, which it would follow without a check.

    Checked as bytes: whether each text is UTF-8 is checked later, text by text.
    """
    import pyarrow as pa

    column.validate()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = column.view(pa.binary() if pa.types.is_string(column.type) else pa.large_binary())
    column.validate(full=True)


def _field(batch: Any, path: list[str]) -> Any:
    import pyarrow.compute as pc

    column = batch.column(path[0])
    for name in path[1:]:
        column = pc.struct_field(column, name)
    return column


def _strings(batch: Any, path: list[str]) -> Any:
    import pyarrow as pa

    column = _field(batch, path)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column


def _find_column(schema: Any, text_column: str) -> list[str]:
    import pyarrow as pa

    path = [text_column] if text_column in schema.names else text_column.split(".")
    fields: Any = schema
    for number, name in enumerate(path):
        names = [field.name for field in fields]
        if name not in names:
            inside = f" in {'.'.join(path[:number])!r}" if number else ""
            raise Unreadable(f"it has no column {text_column!r}: there are {', '.join(map(repr, names))}{inside}")
        if names.count(name) > 1:
            raise Unreadable(f"it has {names.count(name)} columns {name!r}, so the name is ambiguous")
        kind = fields[names.index(name)].type
        fields = [kind.field(at) for at in range(kind.num_fields)] if pa.types.is_struct(kind) else []
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_text = pa.types.is_string(value) or pa.types.is_large_string(value) or pa.types.is_null(value)
    if not is_text and not (hasattr(pa.types, "is_string_view") and pa.types.is_string_view(value)):
        raise Unreadable(f"its column {text_column!r} contains {kind}, not text")
    return path


def _guarded(work: Callable[[], Any]) -> Any:
    import pyarrow as pa

    try:
        return work()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(error) from error


def _steps(arrays: Iterator[Any]) -> Iterator[Any]:
    import pyarrow as pa

    while True:
        try:
            array = next(arrays)
        except StopIteration:
            return
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise _unreadable(error) from error
        yield array


def _unreadable(error: Exception) -> Exception:
    """Convert an error of the library to `Unreadable`, unless it is an error of the operating system."""
    if isinstance(error, OSError) and error.errno is not None:
        return error
    if isinstance(error, UnicodeDecodeError):
        return Unreadable("the name of a column is not UTF-8")
    return Unreadable(" ".join(str(error).split()))
