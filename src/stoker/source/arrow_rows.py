"""Convert rows of Arrow data to samples: dicts of values that the default collate function accepts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError, DamagedFile, MissingExtra, StokerError
from stoker.source.known_file import KnownFile


def arrow_library(need: str) -> ModuleType:
    """Return pyarrow, or raise `MissingExtra`."""
    try:
        import pyarrow
    except ImportError as error:
        raise MissingExtra("pyarrow", extra="arrow", need=need) from error
    return pyarrow  # type: ignore[no-any-return, unused-ignore]


@contextmanager
def refusals(file: KnownFile, what: str) -> Iterator[None]:
    """Convert errors of Arrow, which has many, into `DamagedFile`; errors of the operating system pass through."""
    try:
        yield
    except StokerError:
        raise
    except Exception as error:
        import pyarrow as pa

        is_own = isinstance(error, pa.ArrowException)  # including its MemoryError, which results from corrupt lengths
        if not is_own and (isinstance(error, MemoryError) or getattr(error, "errno", None) is not None):
            raise
        file.check_now()  # a file that changed meanwhile is not damaged
        raise DamagedFile(file.path, what=f"cannot be read, {what}: {error}") from error


def chosen_columns(names: Sequence[str], columns: Sequence[str] | str | None, owner: object) -> list[str]:
    """Return the requested columns, all if None; raise `ArgumentError` for one that does not exist."""
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ArgumentError(f"{owner} has several columns named {', '.join(twice)}", hint="give each its own name")
    if not names:
        raise ArgumentError(f"{owner} has no columns", hint="its rows are empty")
    if columns is None:
        return list(names)
    wanted = [columns] if isinstance(columns, str) else list(columns)
    if not wanted:
        raise ArgumentError("columns must not be empty", hint="pass at least one, or None for all")
    for name in wanted:
        if name not in names:
            raise ArgumentError(f"{owner} has no column {name!r}", hint=f"it has {', '.join(names)}")
    return list(dict.fromkeys(wanted))


def samples_in(parts: Sequence[Any]) -> list[dict[str, Any]]:
    """Return all rows of record batches or tables with one schema, each as a dict by column.

    Numbers, strings, bytes and booleans are Python's; null is None. A list of numbers is a new array, writable; so is a
    list of lists of equal length. A struct is a dict, any other list a list. The data must be validated: Arrow follows
    offsets without checking them.
    """
    import pyarrow as pa

    if len(parts) > 1:
        # one by one if this fails: more text than 32-bit offsets can address, or a type without concatenation
        with suppress(pa.ArrowException):
            parts = [pa.concat_batches(parts)]
    samples: list[dict[str, Any]] = []
    for part in parts:
        columns = [_values(_joined(column)) for column in part.columns]
        samples.extend(dict(zip(part.schema.names, values)) for values in zip(*columns))
    return samples


def picked(rows: Any, numbers: NDArray[np.int64]) -> Any:
    """Return rows of a record batch or table, in the order of `numbers`."""
    import pyarrow as pa

    if len(numbers) == 1:
        return rows.slice(int(numbers[0]), 1)
    try:
        return rows.take(pa.array(numbers))
    except pa.ArrowNotImplementedError:  # not implemented for every type
        pieces = [rows.slice(number, 1) for number in numbers.tolist()]
        return pa.concat_tables(pieces) if isinstance(rows, pa.Table) else pa.concat_batches(pieces)


def _joined(column: Any) -> Any:
    """Return a column as one array; in a table it may have several chunks."""
    if not hasattr(column, "chunks"):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _values(array: Any) -> list[Any]:
    """Return the value of each row."""
    import pyarrow as pa

    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _values(array.storage)
    if pa.types.is_dictionary(kind):
        return _values(array.dictionary_decode())
    if pa.types.is_struct(kind):
        return _structs(array)
    if _is_list(kind):
        return _lists(array)
    values: list[Any] = array.to_pylist()
    return values


def _structs(array: Any) -> list[Any]:
    names = [array.type.field(number).name for number in range(array.type.num_fields)]
    if not names:
        return [None if is_null else {} for is_null in array.is_null().to_pylist()]
    fields = [_values(field) for field in array.flatten()]
    values: list[Any] = [dict(zip(names, row)) for row in zip(*fields)]
    if array.null_count:
        values = [None if is_null else value for value, is_null in zip(values, array.is_null().to_pylist())]
    return values


def _lists(array: Any) -> list[Any]:
    inner = array.type.value_type
    if _is_number(inner) and not array.null_count:
        flat = array.flatten()
        if not flat.null_count:
            numbers = _numbers(flat)
            ends = np.cumsum(array.value_lengths().to_numpy(zero_copy_only=False), dtype=np.int64).tolist()
            return [numbers[begin:end].copy() for begin, end in zip([0, *ends], ends)]
    # Row by row, so that the result for a row does not depend on the rows read with it.
    return [None if not array[row].is_valid else _list(array.slice(row, 1)) for row in range(len(array))]


def _list(row: Any) -> Any:
    """Return the list in the only row of an array, as an array if possible."""
    block = _block(row)
    return block[0].copy() if block is not None else _values(row.flatten())


def _block(array: Any) -> NDArray[Any] | None:
    """Return nested lists of equal length at each level as one array; otherwise None."""
    if array.null_count:
        return None
    if _is_number(array.type):
        return _numbers(array)
    if not _is_list(array.type):
        return None
    lengths = array.value_lengths().to_numpy(zero_copy_only=False)
    if len(lengths) and (lengths != lengths[0]).any():
        return None
    inner = _block(array.flatten())
    return (
        None if inner is None else inner.reshape(len(array), int(lengths[0]) if len(lengths) else 0, *inner.shape[1:])
    )


def _numbers(array: Any) -> NDArray[Any]:
    numbers: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return numbers


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
