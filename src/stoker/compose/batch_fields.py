"""The fields of a batch: their shapes, their layout in one piece of memory, and one batch made of several."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Fields = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
"""Shape and type of each field of one row, by name."""

Empty = Callable[[tuple[int, ...], DTypeLike], NDArray[Any]]

ALIGNMENT = 64
"""A cache line, as vectorized copies prefer."""


class FieldLayout:
    """Where the fields of a batch lie in one piece of memory. Made once for each number of rows."""

    def __init__(self, fields: Fields, num_rows: int) -> None:
        self._places: list[tuple[str, tuple[int, ...], np.dtype[Any], int]] = []
        at = 0
        for name, (shape, dtype) in fields.items():
            self._places.append((name, (num_rows, *shape), dtype, at))
            at += -(-num_rows * math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        self.num_bytes = at
        self.places = {name: at for name, _, _, at in self._places}
        """Byte offset of each field."""

    def allocate(self, empty: Empty) -> dict[str, NDArray[Any]]:
        """Return arrays for a batch, not filled yet, in one piece of memory from `empty`.

        One piece, because a slot may move when more is taken of it, and what was taken before must be written by then.
        """
        return self.arrays(empty((self.num_bytes,), np.uint8))

    def arrays(self, memory: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """Return the arrays for a batch in a piece of memory of `num_bytes`."""
        return {name: np.ndarray(shape, dtype, memory, at) for name, shape, dtype, at in self._places}


def scatter_rows(parts: Sequence[tuple[NDArray[np.int64], Any]], num_rows: int, empty: Empty) -> Any:
    """Return one batch made of several: each part is (its rows in the whole, its batch).

    NotImplemented unless all are dicts, lists or tuples of arrays of the same shapes and types.
    """
    first = parts[0][1]
    if any(type(part) is not type(first) for _, part in parts):
        return NotImplemented
    if type(first) is dict:
        if any(part.keys() != first.keys() for _, part in parts):
            return NotImplemented
        return _scatter_each({name: [(rows, part[name]) for rows, part in parts] for name in first}, num_rows, empty)
    if type(first) is list or type(first) is tuple:
        if any(len(part) != len(first) for _, part in parts):
            return NotImplemented
        fields = {at: [(rows, part[at]) for rows, part in parts] for at in range(len(first))}
        joined = _scatter_each(fields, num_rows, empty)
        return joined if joined is NotImplemented else type(first)(joined.values())
    if not isinstance(first, np.ndarray) or not first.ndim:
        return NotImplemented
    shape = first.shape[1:]
    if any(len(part) != len(rows) or part.shape[1:] != shape or part.dtype != first.dtype for rows, part in parts):
        return NotImplemented
    whole = empty((num_rows, *shape), first.dtype)
    for rows, part in parts:  # before more memory is taken: a slot may move when it grows
        whole[rows] = part
    return whole


def _scatter_each(fields: dict[Any, list[tuple[NDArray[np.int64], Any]]], num_rows: int, empty: Empty) -> Any:
    joined = {}
    for name, parts in fields.items():
        joined[name] = scatter_rows(parts, num_rows, empty)
        if joined[name] is NotImplemented:
            return NotImplemented
    return joined
