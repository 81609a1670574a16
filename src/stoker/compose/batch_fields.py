"""The fields of a batch, and one piece of memory for all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Fields = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
"""Shape and type of each field of one row, by name."""

Empty = Callable[[tuple[int, ...], DTypeLike], NDArray[Any]]

ALIGNMENT = 64
"""A cache line, and what vectorised copies like best."""


class FieldLayout:
    """Where the fields of a batch lie. Made once for each number of rows."""

    def __init__(self, fields: Fields, num_rows: int) -> None:
        self._places: list[tuple[str, tuple[int, ...], np.dtype[Any], int]] = []
        at = 0
        for name, (shape, dtype) in fields.items():
            self._places.append((name, (num_rows, *shape), dtype, at))
            at += -(-num_rows * math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        self.num_bytes = at
        self.places = {name: at for name, _, _, at in self._places}
        """How many bytes of the memory lie before each field."""

    def taken(self, empty: Empty) -> dict[str, NDArray[Any]]:
        """Return arrays for a batch, not filled yet, out of one piece of memory from `empty`.

        One, because a slot may move when more is asked of it, and what was taken before must be written by then.
        """
        return self.arrays(empty((self.num_bytes,), np.uint8))

    def arrays(self, memory: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """Return the arrays for a batch in a piece of memory of `num_bytes`."""
        return {name: np.ndarray(shape, dtype, memory, at) for name, shape, dtype, at in self._places}


def taken(fields: Fields, num_rows: int, empty: Empty) -> dict[str, NDArray[Any]]:
    """Return arrays for a batch of `num_rows` rows with these fields, not filled yet: see `Form`."""
    return FieldLayout(fields, num_rows).taken(empty)
