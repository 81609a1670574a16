"""Rows of Arrow data as samples: dicts of what the default collation takes."""

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
    """Turn what Arrow says of bytes that it does not understand, in many ways, into `DamagedFile`.

    What the system says, such as that too many files are open, stays as it is.
    """
    try:
        yield
    except StokerError:
        raise
    except Exception as error:
        import pyarrow as pa

        is_own = isinstance(error, pa.ArrowException)  # its MemoryError, too, comes of lengths that cannot be
        if not is_own and (isinstance(error, MemoryError) or getattr(error, "errno", None) is not None):
            raise
        file.check_now()  # a file that changed under our hands is not damaged
        raise DamagedFile(file.path, what=f"cannot be read, {what}: {error}") from error


def chosen_columns(names: Sequence[str], columns: Sequence[str] | str | None, owner: object) -> list[str]:
    """Return the columns that were asked for; None asks for all, and one that is not there is an `ArgumentError`."""
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ArgumentError(f"{owner} has several columns named {', '.join(twice)}", hint="give each its own name")
    if not names:
        raise ArgumentError(f"{owner} has no columns", hint="there is nothing in its rows to be read")
    if columns is None:
        return list(names)
    wanted = [columns] if isinstance(columns, str) else list(columns)
    if not wanted:
        raise ArgumentError("columns is empty", hint="pass at least one, or None for all")
    for name in wanted:
        if name not in names:
            raise ArgumentError(f"{owner} has no column {name!r}", hint=f"it has {', '.join(names)}")
    return list(dict.fromkeys(wanted))


def samples_in(parts: Sequence[Any]) -> list[dict[str, Any]]:
    """Return every row of some record batches or tables of one schema, one after the other; each is a dict by column.

    Numbers, strings, bytes and booleans are Python's; what is missing is None. A list of numbers is an array of its
    own, writable; so is a list of lists, where those are of one length. A struct is a dict, any other list a list.
    The data must be valid: Arrow looks at offsets without checking them.
    """
    import pyarrow as pa

    if len(parts) > 1:
        # one by one where that cannot be: more text than offsets of 32 bits can span, or a type that cannot be joined
        with suppress(pa.ArrowException):
            parts = [pa.concat_batches(parts)]
    samples: list[dict[str, Any]] = []
    for part in parts:
        columns = [_values(_joined(column)) for column in part.columns]
        samples.extend(dict(zip(part.schema.names, values)) for values in zip(*columns))
    return samples


def picked(rows: Any, numbers: NDArray[np.int64]) -> Any:
    """Return the rows `numbers` of a record batch or a table, in that order, as another."""
    import pyarrow as pa

    if len(numbers) == 1:
        return rows.slice(int(numbers[0]), 1)
    try:
        return rows.take(pa.array(numbers))
    except pa.ArrowNotImplementedError:  # Arrow cannot take every type
        pieces = [rows.slice(number, 1) for number in numbers.tolist()]
        return pa.concat_tables(pieces) if isinstance(rows, pa.Table) else pa.concat_batches(pieces)


def _joined(column: Any) -> Any:
    """Return a column as one array; in a table it may be in pieces."""
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
    # Row by row: whether the lists in a row are of one length must not depend on the rows read with it.
    return [None if not array[row].is_valid else _list(array.slice(row, 1)) for row in range(len(array))]


def _list(row: Any) -> Any:
    """Return the list of the only row of an array: an array where it can be one."""
    block = _block(row)
    return block[0].copy() if block is not None else _values(row.flatten())


def _block(array: Any) -> NDArray[Any] | None:
    """Return lists in lists, each of one length at its level, as one array; None where they are not."""
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
