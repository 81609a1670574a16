"""Shards that are being filled, in memory, and how samples are shared out to them."""

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
from stoker.store.rows import Loose, Rows
from stoker.store.shard import arrays_of, header_of


class _Growing:
    """An array that is added to. It doubles when it is full, so that adding costs one copy and not one object."""

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
        """The bytes of what was added."""
        return self._array[: self._size].reshape(-1).view(np.uint8).data


class ShardBuffer:
    """A shard that is being filled, in memory."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns = columns
        self._arrays = {name: _Growing(column.numpy, column.shape) for name, column in columns.items()}
        self._num_values = {name: 0 for name, column in columns.items() if column.is_ragged}
        for name in self._num_values:
            self._arrays[name + OFFSETS] = offsets = _Growing(np.dtype("<i8"), ())
            offsets.add(np.zeros(1, np.int64))
        self.num_samples = 0
        self.num_bytes = 0

    def add(self, rows: Rows, at: int, stop: int) -> None:
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

    def written(self, path: Path, name: str, *, piece: str) -> Shard:
        """Write the shard to `path` and return what the manifest says of it under its `name`."""
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
                error.add_note(
                    f"raised while {len(before) + body_bytes} bytes were written to {path.parent.parent / name}"
                )
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


class Filling:
    """Shares samples out to shards. Where one ends depends on the samples alone, however they are handed over."""

    def __init__(self, columns: Mapping[str, Column], shard_bytes: int, put: Callable[[ShardBuffer], None]) -> None:
        self._columns, self._shard_bytes, self._put = columns, shard_bytes, put
        self._loose, self._sheet = Loose(columns), ShardBuffer(columns)
        self._has_failed = False
        self.num_samples = 0

    def append(self, sample: Mapping[str, Any]) -> None:
        """Add a sample."""
        self._check_is_whole()
        self._loose.add(sample)
        self.num_samples += 1
        if self._loose.is_much:
            self._settle()

    def extend(self, columns: Mapping[str, Any]) -> None:
        """Add samples."""
        self._check_is_whole()
        rows = Rows(columns, self._columns)
        self._settle()
        self._add(rows)
        self.num_samples += rows.num_samples

    def finish(self) -> None:
        """Put the last shard."""
        self._check_is_whole()
        self._settle()
        if self._sheet.num_samples:
            self._end_shard()

    def _settle(self) -> None:
        if self._loose.num_samples:
            self._add(Rows(self._loose.taken(), self._columns))

    def _add(self, rows: Rows) -> None:
        at = 0
        while at < rows.num_samples:
            stop = rows.stop_within(at, self._shard_bytes - self._sheet.num_bytes)
            if stop == at:
                if self._sheet.num_samples:
                    self._end_shard()
                    continue
                stop = at + 1  # a sample that is bigger than a shard has one of its own
            self._sheet.add(rows, at, stop)
            at = stop

    def _end_shard(self) -> None:
        self._has_failed = True  # unless what follows goes well
        self._put(self._sheet)
        self._sheet = ShardBuffer(self._columns)
        self._has_failed = False

    def _check_is_whole(self) -> None:
        if self._has_failed:
            raise ArgumentError(
                "a shard could not be written before, and its samples would be missing",
                hint="begin the piece again; a Writer goes on behind what is complete with resume=True",
            )
