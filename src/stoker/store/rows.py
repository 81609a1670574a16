"""Samples as they are handed to a writer: copied, and seen to be what the columns hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError
from stoker.store.column import Column


class Loose:
    """Samples that came one by one, until there are enough to be worth a vectorised look at them."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns = columns
        self._values: dict[str, list[NDArray[Any]]] = {name: [] for name in columns}
        self.num_samples = 0
        self._num_bytes = 0

    @property
    def is_much(self) -> bool:
        """Whether it is time to take them."""
        return self.num_samples >= 512 or self._num_bytes >= 1 << 20

    def add(self, sample: Mapping[str, Any]) -> None:
        """Copy a sample, if it is what the columns hold."""
        _check_names(sample, self._columns)
        taken = {name: _array_of(sample[name], column, name) for name, column in self._columns.items()}
        for name, array in taken.items():
            self._values[name].append(array)
            self._num_bytes += array.nbytes
        self.num_samples += 1

    def taken(self) -> dict[str, Any]:
        """Return the samples as `extend` takes them."""
        values, self._values = self._values, {name: [] for name in self._columns}
        self.num_samples = self._num_bytes = 0
        return {
            name: (np.concatenate(values[name]), np.array(list(map(len, values[name]))))
            if column.is_ragged
            else np.array(values[name])
            for name, column in self._columns.items()
        }


def _array_of(value: Any, column: Column, name: str) -> NDArray[Any]:
    """Return one sample's value as a new array of the column's type."""
    if column.kind == "text":
        if not isinstance(value, str):
            raise ArgumentError(f"{name!r} is a column of text, not of {type(value).__name__}", hint="pass a str")
        try:
            value = value.encode()
        except UnicodeEncodeError as error:
            raise ArgumentError(f"{name!r} has text that is not Unicode: {error}", hint="mend or skip it") from error
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
        raise ArgumentError(f"{name!r} is given what makes no array: {error}", hint="pass an array") from error
    if column.is_ragged:
        if not array.size and array.ndim == 1 and column.shape:
            array = array.reshape(0, *column.shape)  # an empty list does not tell its shape
        if not array.size:
            array = array.astype(column.numpy)
        return _converted(array, column, name)
    converted: NDArray[Any] = _converted(array[None], column, name)[0]
    return converted


def _pair(given: Any, column: Column, name: str) -> tuple[Any, Any]:
    """Return a ragged column's values and lengths; of text and bytes, a list of samples will do."""
    if isinstance(given, list) and column.kind != "array":
        arrays = [_array_of(value, column, name) for value in given]
        return np.concatenate([*arrays, np.empty(0, np.uint8)]), np.array([len(array) for array in arrays], np.int64)
    if not isinstance(given, tuple) or len(given) != 2:
        others = "" if column.kind == "array" else f", or a list of {'str' if column.kind == 'text' else 'bytes'}"
        raise ArgumentError(
            f"{name!r} is ragged, and takes a pair", hint=f"pass (values, lengths), a length for each sample{others}"
        )
    return given


def _check_names(given: Mapping[str, Any], columns: Mapping[str, Column]) -> None:
    if not isinstance(given, Mapping):
        raise ArgumentError(
            f"samples are tables of values by column, not {type(given).__name__}", hint="pass {'column': value, ...}"
        )
    if given.keys() != columns.keys():
        for name in given:
            if name not in columns:
                raise ArgumentError(
                    f"the store has no column {name!r}", hint="name it in the columns the writer is made with"
                )
        missing = sorted(columns.keys() - given.keys())
        raise ArgumentError(f"samples have no {', '.join(missing)}", hint="give a value for every column")


class Rows:
    """Samples that were handed over, checked."""

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
                is_beyond = bool(lengths.size and lengths.max() > len(array))  # a sum of such may come round again
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
            raise ArgumentError(f"the columns have different numbers of samples: {counts}", hint="give as many of each")
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
        """Return where those samples end that from `at` on take no more than `num_bytes`."""
        return max(at, int(np.searchsorted(self._sizes, self._sizes[at] + num_bytes, "right")) - 1)

    def num_bytes(self, at: int, stop: int) -> int:
        """Return how much room samples take."""
        return int(self._sizes[stop] - self._sizes[at])


def _check_is_text(values: NDArray[np.uint8], starts: NDArray[np.int64], name: str) -> None:
    """Refuse what could not be read again: bytes that are not UTF-8, and samples that begin within a character."""
    begins = starts[:-1][starts[:-1] < starts[1:]]
    try:
        str(values.data, "utf-8")
        is_cut = bool(((values[begins] & 0xC0) == 0x80).any())
    except UnicodeDecodeError as error:
        raise ArgumentError(
            f"{name!r} is a column of text, and not all is UTF-8: {error}", hint="keep it as Column.blob()"
        ) from error
    if is_cut:
        raise ArgumentError(f"a length of {name!r} ends within a character", hint="lengths of text count bytes")


def _converted(values: Any, column: Column, name: str) -> NDArray[Any]:
    """Return values as an array of the column's type; those that it cannot hold are an error."""
    array = np.asarray(values)
    if array.ndim != 1 + len(column.shape) or array.shape[1:] != column.shape:
        raise ArgumentError(
            f"{name!r} is a column of {column.described()}, and does not hold values of the shape {array.shape[1:]}",
            hint="say Column.ragged(dtype) for samples of different lengths",
        )
    if array.dtype == column.numpy:
        return np.ascontiguousarray(array)
    converted = array.astype(column.numpy) if not array.size else _as_type(array, column.numpy)
    if converted is None:
        raise ArgumentError(
            f"{name!r} is a column of {column.dtype}, which cannot hold every value of the {array.dtype} given",
            hint="choose a wider type for the column, or convert the values before",
        )
    return np.ascontiguousarray(converted)


def _as_type(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Return an array of another type, if it can hold every value: fractions rounded, whole numbers as they are."""
    if array.dtype.kind not in "biufc" or (array.dtype.kind == "c" and dtype.kind != "c"):
        return None
    with np.errstate(all="ignore"):
        converted = array.astype(dtype)
        if array.dtype.kind in "fc" and dtype.kind in "fc":
            is_held = np.array_equal(np.isfinite(converted), np.isfinite(array))
        else:  # both ways: -1 comes back from an unsigned type, and 2**53 + 1 is equal to what it was rounded to
            is_held = bool(np.all(converted == array)) and bool(np.all(converted.astype(array.dtype) == array))
    return converted if is_held else None
