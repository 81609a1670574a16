"""Validate positions of samples."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError, PositionError

Positions = Sequence[int] | NDArray[np.integer[Any]]

_MAX = np.uint64(np.iinfo(np.int64).max)


def in_range(positions: Positions, num_samples: int, *, what: str) -> NDArray[np.int64]:
    """Return positions as an int64 array, from 0; negative ones count from the end."""
    numbers = np.asarray(positions)
    if numbers.size == 0:
        numbers = numbers.astype(np.int64)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise ArgumentError(f"positions must be a list of ints, got {_excerpt(positions)}", hint="pass a list of int")
    if numbers.dtype == np.uint64:  # values beyond int64 must not become negative
        numbers = np.minimum(numbers, _MAX)
    numbers = numbers.astype(np.int64, copy=False)
    if numbers.size and (int(numbers.min()) < 0 or int(numbers.max()) >= num_samples):
        numbers = np.where(numbers < 0, numbers + num_samples, numbers)
        is_out = (numbers < 0) | (numbers >= num_samples)
        if is_out.any():
            raise PositionError(int(np.asarray(positions)[is_out][0]), what=what, length=num_samples)
    return numbers


def one_position(position: Any) -> int:
    """Return a single position as an int."""
    if not isinstance(position, bool):
        with suppress(TypeError):
            return operator.index(position)
    raise ArgumentError(
        f"a position must be an int, got {_excerpt(position)}",
        hint="for many at once: __getitems__([...]), or read(column, [...]) of a store",
    )


def _excerpt(positions: Any) -> str:
    text = repr(positions)
    return text if len(text) <= 60 else f"{text[:57]}..."
