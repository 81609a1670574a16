"""Who is next, by shares."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError
from stoker.native.arrays import address, inputs
from stoker.native.faults import raise_fault
from stoker.native.library import library

LARGEST_PERIOD = 1 << 22
MOST_WEIGHTS = 1 << 16


def apportion(weights: NDArray[np.int64], out: NDArray[Any]) -> bool:
    """Write into `out` (uint16, one for each slot of the period) whose turn it is, so that `i` has `weights[i]` slots.

    The chairman assignment: among `k` weights that are not 0, `i` has had `n * weights[i] / period` of the first `n`
    slots, give or take `1 - 1 / (2 * k - 2)`. Turn `j` (from 1) of `i` has a window from slot
    `ceil(((j - 1) * d + 1) * period / (d * weights[i]))` to `floor((j * d - 1) * period / (d * weights[i])) + 1`,
    with `d = 2 * k - 2` and slots from 1; each slot goes to the turn whose window ends first, of those that have begun,
    and of equal ones to the smallest `i`.

    False, and nothing written, where the library is not there, `out` is of another layout or the period beyond
    `LARGEST_PERIOD`; `ArgumentError` if the weights are negative or their sum is not `len(out)`.
    """
    native = library()
    if native is None or out.dtype != np.uint16 or out.ndim != 1 or not out.flags.carray:
        return False
    if len(out) > LARGEST_PERIOD:
        return False
    weights = inputs("weights", weights)
    if not 0 < len(weights) <= MOST_WEIGHTS:
        raise ArgumentError(f"there are {len(weights)} weights", hint=f"from 1 to {MOST_WEIGHTS} can be apportioned")
    found = native.apportion(address(weights), len(weights), address(out), len(out))
    if found:
        raise_fault(found)
    return True
