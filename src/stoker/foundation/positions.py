"""Validate positions of samples: negative ones count from the end.

`in_range` and `one_position` raise `ArgumentError` for what is not an integer. `positions_in` and `position_in`, which
sources use, raise `TypeError`, as lists do.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError, PositionError

Positions = Sequence[int] | NDArray[np.integer[Any]]

_MAX = np.uint64(np.iinfo(np.int64).max)


def in_range(positions: Positions, num_samples: int, *, what: object) -> NDArray[np.int64]:
    """Return positions as an int64 array, from 0, which may be the given one. `what` is the data, for the error."""
    numbers = np.asarray(positions)
    if numbers.size == 0:
        numbers = numbers.astype(np.int64)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise ArgumentError(f"positions must be a list of ints, got {_excerpt(positions)}", hint="pass a list of int")
    if numbers.dtype == np.uint64:  # values beyond int64 must not become negative
        numbers = np.minimum(numbers, _MAX)
    numbers = numbers.astype(np.int64, copy=False)
    # One comparison for both ends: as unsigned integers, negative positions are the largest of all.
    if not numbers.size or int(numbers.view(np.uint64).max()) < num_samples:
        return numbers
    numbers = np.where(numbers < 0, numbers + num_samples, numbers)
    is_out = (numbers < 0) | (numbers >= num_samples)
    if is_out.any():
        raise PositionError(int(np.asarray(positions)[is_out][0]), what=str(what), length=num_samples)
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


def position_in(position: SupportsIndex, length: int, owner: object) -> int:
    """Return `position` from 0. Raise `PositionError` if it is out of range."""
    wanted = given = operator.index(position)
    if wanted < 0:
        wanted += length
    if not 0 <= wanted < length:
        raise PositionError(given, length=length, what=repr(owner))
    return wanted


def positions_in(
    positions: Sequence[SupportsIndex] | NDArray[np.integer[Any]], length: int, owner: object
) -> NDArray[np.int64]:
    """Return `positions` like `position_in`, as one array, which may be the given one."""
    found = np.asarray(positions)
    if found.dtype != np.int64 or found.ndim != 1:
        found = _one_by_one(positions, length, owner)
    return in_range(found, length, what=owner)


def _one_by_one(positions: Iterable[SupportsIndex], length: int, owner: object) -> NDArray[np.int64]:
    # Not `astype`, which would truncate 1.5 and wrap large numbers.
    indices = [operator.index(position) for position in positions]
    try:
        return np.array(indices, dtype=np.int64)
    except OverflowError:
        far = next(index for index in indices if not -length <= index < length)
        raise PositionError(far, length=length, what=repr(owner)) from None


def _excerpt(positions: Any) -> str:
    text = repr(positions)
    return text if len(text) <= 60 else f"{text[:57]}..."
