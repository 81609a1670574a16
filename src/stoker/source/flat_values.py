"""Values of one dtype in one or several files, as one sequence; memory-mapped."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.source.known_file import KnownFile
from stoker.source.mapped_files import MappedFiles

if TYPE_CHECKING:
    from stoker.store.crops import Crops

# From this length on, copying rows one by one is faster than gathering them first.
_LONG = 128


class ValueFile(NamedTuple):
    """A file, and the location of its values."""

    file: KnownFile
    offset_bytes: int
    num_values: int


class FlatValues:
    """The values of several files as one array. Threads, forks and pickling: as `MappedFiles`."""

    def __init__(self, parts: Sequence[ValueFile], dtype: np.dtype[Any]) -> None:
        self.parts, self._stored = tuple(parts), dtype
        self.dtype = dtype.newbyteorder("=")
        """The dtype of results, in native byte order."""
        self.ends = np.array(list(accumulate(part.num_values for part in parts)), dtype=np.int64)
        """End of each file, counted in values."""
        self._sizes = np.array([part.num_values for part in parts], dtype=np.int64)
        self._begins = self.ends - self._sizes
        self.num_values = int(self.ends[-1])
        self._files = MappedFiles([part.file for part in parts])

    def __getstate__(self) -> tuple[tuple[ValueFile, ...], np.dtype[Any]]:
        return self.parts, self._stored

    def __setstate__(self, state: tuple[tuple[ValueFile, ...], np.dtype[Any]]) -> None:
        FlatValues.__init__(self, *state)

    def place_of(self, value: int) -> tuple[int, int]:
        """Return the number of a value's file, and the value's number there."""
        number = int(np.searchsorted(self.ends, value, side="right"))
        return number, value - (int(self.ends[number - 1]) if number else 0)

    def read(self, begin: int, end: int) -> NDArray[Any]:
        """Return the values from `begin` to `end` (exclusive), which exist, as a new array."""
        out = np.empty(end - begin, self.dtype)
        self._copy(begin, out)
        self._files.check()
        return out

    def flat(self) -> NDArray[Any]:
        """Return a view of the values of the only file. Do not keep it."""
        assert len(self.parts) == 1
        return self._values_of(0)

    def take(self, places: NDArray[np.int64]) -> NDArray[Any]:
        """Return single values."""
        return self.windows(places, 1).reshape(-1)

    def windows(self, starts: NDArray[np.int64], length: int) -> NDArray[Any]:
        """Return `length` values from each of `starts`, which exist, as rows of a new array."""
        if not length or not len(starts):
            return np.empty((len(starts), length), self.dtype)
        if len(self.parts) == 1:
            rows: NDArray[Any] = self._windows_of(0, length)[starts]
            self._files.check()
            return rows if self._stored.isnative else rows.astype(self.dtype)
        out = np.empty((len(starts), length), self.dtype)
        first = np.searchsorted(self.ends, starts, side="right")
        local = starts - self._begins[first]
        is_inside = local + length <= self._sizes[first]
        if not is_inside.all():
            for row in np.flatnonzero(~is_inside).tolist():
                self._copy(int(starts[row]), out[row])
        if length >= _LONG:
            self._fill_rows(out, first, local, is_inside)
        else:
            self._fill_groups(out, first, local, is_inside)
        self._files.check()
        return out

    def _fill_rows(
        self, out: NDArray[Any], first: NDArray[np.int64], local: NDArray[np.int64], is_inside: NDArray[np.bool_]
    ) -> None:
        """Copy the rows that are within one file, one by one."""
        length = out.shape[1]
        values = {number: self._values_of(number) for number in set(first.tolist())}
        for row, number, begin, is_whole in zip(out, first.tolist(), local.tolist(), is_inside.tolist()):
            if is_whole:
                row[:] = values[number][begin : begin + length]

    def _fill_groups(
        self, out: NDArray[Any], first: NDArray[np.int64], local: NDArray[np.int64], is_inside: NDArray[np.bool_]
    ) -> None:
        """Gather the rows that are within one file, file by file."""
        order = np.argsort(first, kind="stable")
        order = order[is_inside[order]]
        in_order = first[order]
        cuts = np.flatnonzero(in_order[1:] != in_order[:-1]) + 1
        for together in np.split(order, cuts) if len(order) else ():
            out[together] = self._windows_of(int(first[together[0]]), out.shape[1])[local[together]]

    def _copy(self, begin: int, out: NDArray[Any]) -> None:
        """Fill `out` with the values from `begin`, across files."""
        number, local = self.place_of(begin)
        done = 0
        while done < len(out):
            part = self._values_of(number)[local : local + len(out) - done]
            out[done : done + len(part)] = part
            done += len(part)
            number, local = number + 1, 0

    def _values_of(self, number: int) -> NDArray[Any]:
        return self._view(number, (self.parts[number].num_values,), (self._stored.itemsize,))

    def _windows_of(self, number: int, length: int) -> NDArray[Any]:
        """Return all windows of one file as rows, as a view with overlapping strides."""
        itemsize = self._stored.itemsize
        return self._view(number, (self.parts[number].num_values - length + 1, length), (itemsize, itemsize))

    def _view(self, number: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> NDArray[Any]:
        if not self.parts[number].num_values:
            return np.empty(shape, self._stored)
        # Not `as_strided`, which takes ten times as long and does not check the shape against the memory.
        content = self._files[number].content
        return np.ndarray(shape, self._stored, content, self.parts[number].offset_bytes, strides)


class FlatTokens:
    """A source of tokens that are `FlatValues`."""

    _values: FlatValues

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the tokens, in native byte order."""
        return self._values.dtype

    @property
    def num_values(self) -> int:
        """The number of tokens."""
        return self._values.num_values

    def windows(self, starts: NDArray[np.int64], length: int) -> NDArray[Any]:
        """Return `length` tokens from each of `starts`, as rows of a new array. All must exist."""
        return self._values.windows(starts, length)

    def tokens(self, length: int = 2048, **options: Any) -> Crops:
        """Return crops of `length` tokens as samples; the options are those of `stoker.store.Crops`."""
        from stoker.store.crops import Crops

        return Crops(self, length=length, **options)  # type: ignore[arg-type]
