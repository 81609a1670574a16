"""Validate positions of samples: negative ones count from the end."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from stoker.errors import PositionError


def position_in(position: SupportsIndex, length: int, owner: object) -> int:
    """Return `position` from 0; a negative one counts from the end. Raise `PositionError` if it is out of range."""
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
    if not found.size:
        return found
    # One comparison for both ends: as unsigned integers, negative positions are the largest of all.
    if int(found.view(np.uint64).max()) < length:
        return found
    from_start = np.where(found < 0, found + length, found)
    is_outside = (from_start < 0) | (from_start >= length)
    if is_outside.any():
        raise PositionError(int(found[is_outside][0]), length=length, what=repr(owner))
    return from_start


def _one_by_one(positions: Iterable[SupportsIndex], length: int, owner: object) -> NDArray[np.int64]:
    # Not `astype`, which would truncate 1.5 and wrap large numbers.
    indices = [operator.index(position) for position in positions]
    try:
        return np.array(indices, dtype=np.int64)
    except OverflowError:
        far = next(index for index in indices if not -length <= index < length)
        raise PositionError(far, length=length, what=repr(owner)) from None
