"""Turns by weight: the C twin of `stoker.plan.quota.apportioned`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError
from stoker.native.arrays import address, as_input
from stoker.native.faults import raise_fault
from stoker.native.library import library

LARGEST_PERIOD = 1 << 22
MOST_WEIGHTS = 1 << 16
"""Up to these two, no product in apportion.c exceeds 63 bits."""


def apportion(weights: NDArray[np.int64], out: NDArray[Any]) -> bool:
    """Write into `out` (uint16, one entry per slot of the period) whose turn it is, so that `i` has `weights[i]` slots.

    The chairman assignment: among `k` weights that are not 0, `i` has had `n * weights[i] / period` of the first `n`
    slots, within `1 - 1 / (2 * k - 2)`. Turn `j` (from 1) of `i` has a window from slot
    `ceil(((j - 1) * d + 1) * period / (d * weights[i]))` to `floor((j * d - 1) * period / (d * weights[i])) + 1`,
    with `d = 2 * k - 2` and slots from 1; each slot goes to the turn whose window ends first, among those that have
    begun, and among equal ones to the smallest `i`.

    Returns False, having written nothing, where the library is not loaded, `out` has another layout or the period is
    beyond `LARGEST_PERIOD`. Raises `ArgumentError` if a weight is negative or they do not add up to `len(out)`.
    """
    native = library()
    if native is None or out.dtype != np.uint16 or out.ndim != 1 or not out.flags.carray:
        return False
    if len(out) > LARGEST_PERIOD:
        return False
    weights = as_input("weights", weights)
    if not 0 < len(weights) <= MOST_WEIGHTS:
        raise ArgumentError(f"expected 1 to {MOST_WEIGHTS} weights, got {len(weights)}", hint="mix fewer sources")
    found = native.apportion(weights=address(weights), num_weights=len(weights), out=address(out), period=len(out))
    if found:
        raise_fault(found)
    return True
