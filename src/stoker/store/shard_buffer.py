"""Check samples, collect them in memory, and split them into shards."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError
from stoker.store.checksums import RunningChecksums, checksum, num_checksums_for
from stoker.store.column import OFFSETS, Column
from stoker.store.header import num_bytes_of
from stoker.store.manifest import Shard
from stoker.store.shard import arrays_of, header_of


class _GrowingArray:
    """An array to append to. Its capacity doubles, so that appending costs one copy and no object per sample."""

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._array: NDArray[Any] = np.empty((0, *shape), dtype)
        self._size = 0

    def add(self, part: NDArray[Any]) -> None:
        size = self._size + len(part)
        if size > len(self._array):
            least = 4096 // max(1, math.prod(self._array.shape[1:]) * self._array.itemsize)
            array = np.empty((max(size, 2 * self._size, least), *self._array.shape[1:]), self._array.dtype)
            array[: self._size] = self._array[: self._size]
            self._array = array
        self._array[self._size : size] = part
        self._size = size

    @property
    def data(self) -> memoryview:
        """The appended values, as bytes."""
        return self._array[: self._size].reshape(-1).view(np.uint8).data


class ShardBuffer:
    """An unfinished shard, in memory."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns = columns
        self._arrays = {name: _GrowingArray(column.numpy, column.shape) for name, column in columns.items()}
        self._num_values = {name: 0 for name, column in columns.items() if column.is_ragged}
        for name in self._num_values:
            self._arrays[name + OFFSETS] = offsets = _GrowingArray(np.dtype("<i8"), ())
            offsets.add(np.zeros(1, np.int64))
        self.num_samples = 0
        self.num_bytes = 0

    def add(self, rows: CheckedSamples, at: int, stop: int) -> None:
        """Add some of the samples."""
        for name, array in rows.arrays.items():
            if name not in self._num_values:
                self._arrays[name].add(array[at:stop])
                continue
            starts = rows.starts[name]
            first, last = int(starts[at]), int(starts[stop])
            self._arrays[name].add(array[first:last])
            self._arrays[name + OFFSETS].add(starts[at + 1 : stop + 1] - (first - self._num_values[name]))
            self._num_values[name] += last - first
        self.num_samples += stop - at
        self.num_bytes += rows.num_bytes(at, stop)

    def write(self, path: Path, name: str, *, piece: str) -> Shard:
        """Write the shard to `path` and return its manifest entry, under its final `name`."""
        arrays = arrays_of(self._columns, self.num_samples, self._num_values)
        body_bytes = sum(num_bytes_of(*array) for array in arrays.values())
        sums = RunningChecksums()
        parts = [self._arrays[name].data for name in arrays]
        for part in parts:
            sums.update(part)
        header = header_of(arrays, self.num_samples)
        before = header + sums.result(body_bytes).tobytes()
        assert len(before) == len(header) + 8 * num_checksums_for(body_bytes)
        try:
            with open(path, "wb", buffering=0) as file:
                for data in (memoryview(before), *parts):
                    _write(file.fileno(), data)
                os.fsync(file.fileno())
        except BaseException as error:
            path.unlink(missing_ok=True)
            if isinstance(error, OSError):
                error.add_note(f"while writing {len(before) + body_bytes} bytes to {path.parent.parent / name}")
            raise
        return Shard(
            file=name,
            piece=piece,
            num_samples=self.num_samples,
            num_bytes=len(before) + body_bytes,
            body=len(before),
            values=dict(self._num_values),
            digest=f"{checksum(before):016x}",
        )


def _write(descriptor: int, data: memoryview) -> None:
    while len(data):
        data = data[os.write(descriptor, data[: 1 << 30]) :]


class ShardSplitter:
    """Splits samples into shards. Where a shard ends depends only on the samples, however they are passed."""

    def __init__(self, columns: Mapping[str, Column], shard_bytes: int, write: Callable[[ShardBuffer], None]) -> None:
        self._columns, self._shard_bytes, self._write = columns, shard_bytes, write
        self._pending, self._buffer = PendingSamples(columns), ShardBuffer(columns)
        self._has_failed = False
        self.num_samples = 0

    def append(self, sample: Mapping[str, Any]) -> None:
        """Add a sample."""
        self._check_has_not_failed()
        self._pending.add(sample)
        self.num_samples += 1
        if self._pending.is_full:
            self._flush()

    def extend(self, columns: Mapping[str, Any]) -> None:
        """Add samples."""
        self._check_has_not_failed()
        rows = CheckedSamples(columns, self._columns)
        self._flush()
        self._add(rows)
        self.num_samples += rows.num_samples

    def finish(self) -> None:
        """Write the last shard."""
        self._check_has_not_failed()
        self._flush()
        if self._buffer.num_samples:
            self._end_shard()

    def _flush(self) -> None:
        if self._pending.num_samples:
            self._add(CheckedSamples(self._pending.take(), self._columns))

    def _add(self, rows: CheckedSamples) -> None:
        at = 0
        while at < rows.num_samples:
            stop = rows.stop_within(at, self._shard_bytes - self._buffer.num_bytes)
            if stop == at:
                if self._buffer.num_samples:
                    self._end_shard()
                    continue
                stop = at + 1  # a sample larger than a shard gets its own
            self._buffer.add(rows, at, stop)
            at = stop

    def _end_shard(self) -> None:
        self._has_failed = True  # until the shard is written
        self._write(self._buffer)
        self._buffer = ShardBuffer(self._columns)
        self._has_failed = False

    def _check_has_not_failed(self) -> None:
        if self._has_failed:
            raise ArgumentError(
                "an earlier shard could not be written, so its samples would be missing",
                hint="start the piece again; a Writer with resume=True continues after the complete shards",
            )


# ---------------------------------------------------------------------------- checking samples


class PendingSamples:
    """Samples added one by one, collected until there are enough for vectorized checks."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns = columns
        self._values: dict[str, list[NDArray[Any]]] = {name: [] for name in columns}
        self.num_samples = 0
        self._num_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether there are enough."""
        return self.num_samples >= 512 or self._num_bytes >= 1 << 20

    def add(self, sample: Mapping[str, Any]) -> None:
        """Copy a sample, after checking it against the columns."""
        _check_names(sample, self._columns)
        arrays = {name: _array_of(sample[name], column, name) for name, column in self._columns.items()}
        for name, array in arrays.items():
            self._values[name].append(array)
            self._num_bytes += array.nbytes
        self.num_samples += 1

    def take(self) -> dict[str, Any]:
        """Return the samples in the form of the arguments of `extend`, and start again."""
        values, self._values = self._values, {name: [] for name in self._columns}
        self.num_samples = self._num_bytes = 0
        return {
            name: (np.concatenate(values[name]), np.array(list(map(len, values[name]))))
            if column.is_ragged
            else np.array(values[name])
            for name, column in self._columns.items()
        }


def _array_of(value: Any, column: Column, name: str) -> NDArray[Any]:
    """Return the value of one sample as a new array of the column's dtype."""
    if column.kind == "text":
        if not isinstance(value, str):
            raise ArgumentError(f"{name!r} is a column of text, not of {type(value).__name__}", hint="pass a str")
        try:
            value = value.encode()
        except UnicodeEncodeError as error:
            raise ArgumentError(f"{name!r} has text that is not Unicode: {error}", hint="fix or skip it") from error
    if column.kind != "array":
        try:
            return np.frombuffer(memoryview(value).tobytes(), np.uint8)
        except TypeError as error:
            raise ArgumentError(
                f"{name!r} is a column of bytes, not of {type(value).__name__}", hint="pass bytes"
            ) from error
    try:
        array = np.array(value)
    except ValueError as error:
        raise ArgumentError(f"{name!r} cannot be converted to an array: {error}", hint="pass an array") from error
    if column.is_ragged:
        if not array.size and array.ndim == 1 and column.shape:
            array = array.reshape(0, *column.shape)  # an empty list has no inner shape
        if not array.size:
            array = array.astype(column.numpy)
        return _converted(array, column, name)
    converted: NDArray[Any] = _converted(array[None], column, name)[0]
    return converted


def _pair(given: Any, column: Column, name: str) -> tuple[Any, Any]:
    """Return values and lengths of a ragged column; for text and bytes also from a list of samples."""
    if isinstance(given, list) and column.kind != "array":
        arrays = [_array_of(value, column, name) for value in given]
        return np.concatenate([*arrays, np.empty(0, np.uint8)]), np.array([len(array) for array in arrays], np.int64)
    if not isinstance(given, tuple) or len(given) != 2:
        others = "" if column.kind == "array" else f", or a list of {'str' if column.kind == 'text' else 'bytes'}"
        raise ArgumentError(
            f"{name!r} is ragged, and needs a pair", hint=f"pass (values, lengths), a length for each sample{others}"
        )
    return given


def _check_names(given: Mapping[str, Any], columns: Mapping[str, Column]) -> None:
    if not isinstance(given, Mapping):
        raise ArgumentError(
            f"samples must be dicts {{column: value}}, got {type(given).__name__}", hint="pass {'column': value, ...}"
        )
    if given.keys() != columns.keys():
        for name in given:
            if name not in columns:
                raise ArgumentError(f"the store has no column {name!r}", hint="add it to the columns of the writer")
        missing = sorted(columns.keys() - given.keys())
        raise ArgumentError(f"samples have no {', '.join(missing)}", hint="pass a value for every column")


class CheckedSamples:
    """Samples, checked against the columns."""

    def __init__(self, given: Mapping[str, Any], columns: Mapping[str, Column]) -> None:
        _check_names(given, columns)
        self.arrays: dict[str, NDArray[Any]] = {}
        self.starts: dict[str, NDArray[np.int64]] = {}
        counts: dict[str, int] = {}
        for name, column in columns.items():
            if column.is_ragged:
                values, lengths = _pair(given[name], column, name)
                array, lengths = _converted(values, column, name), np.asarray(lengths)
                if lengths.ndim != 1 or (lengths.size and (lengths.dtype.kind not in "iu" or lengths.min() < 0)):
                    raise ArgumentError(f"the lengths of {name!r} are not a list of counts", hint="pass int64 lengths")
                starts = np.zeros(len(lengths) + 1, np.int64)
                np.cumsum(lengths, out=starts[1:], dtype=np.int64)
                is_beyond = bool(
                    lengths.size and lengths.max() > len(array)
                )  # such a sum could overflow to the right value
                if is_beyond or starts[-1] != len(array):
                    raise ArgumentError(
                        f"{name!r} has {len(array)} values, but its lengths add up to {starts[-1]}",
                        hint="pass (values, lengths) with one length for each sample",
                    )
                if column.kind == "text":
                    _check_is_text(array, starts, name)
                self.starts[name] = starts
                counts[name] = len(lengths)
            else:
                array = _converted(given[name], column, name)
                counts[name] = len(array)
            self.arrays[name] = array
        if len(set(counts.values())) > 1:
            raise ArgumentError(
                f"the columns have different numbers of samples: {counts}", hint="pass the same number for each"
            )
        self.num_samples = next(iter(counts.values()))
        self._columns = columns
        sizes = np.zeros(self.num_samples + 1, np.int64)
        for name, column in columns.items():
            if column.is_ragged:
                sizes += self.starts[name] * column.value_bytes + 8 * np.arange(self.num_samples + 1)
            else:
                sizes += column.value_bytes * np.arange(self.num_samples + 1)
        self._sizes = sizes

    def stop_within(self, at: int, num_bytes: int) -> int:
        """Return the end of the samples from `at` that fit into `num_bytes`."""
        return max(at, int(np.searchsorted(self._sizes, self._sizes[at] + num_bytes, "right")) - 1)

    def num_bytes(self, at: int, stop: int) -> int:
        """Return the size of samples."""
        return int(self._sizes[stop] - self._sizes[at])


def _check_is_text(values: NDArray[np.uint8], starts: NDArray[np.int64], name: str) -> None:
    """Raise `ArgumentError` for bytes that are not UTF-8, and samples that begin within a character."""
    begins = starts[:-1][starts[:-1] < starts[1:]]
    try:
        str(values.data, "utf-8")
        is_cut = bool(((values[begins] & 0xC0) == 0x80).any())
    except UnicodeDecodeError as error:
        raise ArgumentError(
            f"{name!r} is a column of text, but is not UTF-8: {error}", hint="use Column.blob()"
        ) from error
    if is_cut:
        raise ArgumentError(f"a length of {name!r} ends within a character", hint="lengths of text count bytes")


def _converted(values: Any, column: Column, name: str) -> NDArray[Any]:
    """Return values as an array of the column's dtype; raise `ArgumentError` if it cannot represent them."""
    array = np.asarray(values)
    if array.ndim != 1 + len(column.shape) or array.shape[1:] != column.shape:
        raise ArgumentError(
            f"{name!r} is a column of {column.described()}, got values of shape {array.shape[1:]}",
            hint="use Column.ragged(dtype) for samples of different lengths",
        )
    if array.dtype == column.numpy:
        return np.ascontiguousarray(array)
    converted = array.astype(column.numpy) if not array.size else _as_type(array, column.numpy)
    if converted is None:
        raise ArgumentError(
            f"{name!r} is a column of {column.dtype}, which cannot represent every value of the {array.dtype} given",
            hint="choose a wider dtype for the column, or convert the values first",
        )
    return np.ascontiguousarray(converted)


def _as_type(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Return an array of another dtype if it can represent every value, with floats rounded; else None."""
    if array.dtype.kind not in "biufc" or (array.dtype.kind == "c" and dtype.kind != "c"):
        return None
    with np.errstate(all="ignore"):
        converted = array.astype(dtype)
        if array.dtype.kind in "fc" and dtype.kind in "fc":
            is_held = np.array_equal(np.isfinite(converted), np.isfinite(array))
        else:  # both ways: -1 survives a round trip through an unsigned dtype, and 2**53 + 1 equals its rounded float
            is_held = bool(np.all(converted == array)) and bool(np.all(converted.astype(array.dtype) == array))
    return converted if is_held else None
