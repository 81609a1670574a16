"""A running digest of what was served, so that two runs can be compared.

The digest is the sum, modulo 2**64, of one hash per sample of (epoch, ordinal, position). A sum does not depend on
which rank served a sample, in which batch or how late. So the digests of all ranks add up to that of a single rank, and
a run that was resumed has the digest of one that was never stopped. A sample that is missing, repeated or at the wrong
ordinal changes it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stoker.plan.mixing import FIRST, GOLDEN, MASK, Words, derived_key

_FIRST, _32, _ONE = np.uint64(FIRST), np.uint64(32), np.uint64(1)
_TWICE = np.uint64(2 * GOLDEN & MASK)  # even: with one added, every ordinal has its own odd number


def digests(epoch: int, ordinals: NDArray[np.int64], positions: NDArray[np.int64]) -> Words:
    """Return the hash of each (epoch, ordinal, position): the mixed position times an odd number from the ordinal.

    Mixing the ordinal as well would double the cost, which every sample ever served pays.
    """
    words: Words = positions.view(np.uint64) + np.uint64(derived_key(epoch))
    words *= _FIRST
    words ^= words >> _32
    odd = ordinals.view(np.uint64) * _TWICE
    odd += _ONE
    words *= odd
    return words


def added(first: int, second: int) -> int:
    """Return the digest of two parts of a run together: their sum modulo 2**64."""
    return (first + second) & MASK
