"""A running digest of what was served, so that two runs can be compared.

The digest is the sum, modulo 2**64, of one hash per sample of (epoch, ordinal, position). A sum does not depend on who
served a sample, in which batch or how late, so the digests of all ranks add up to that of a single rank, and a run that
was stopped and resumed ends with that of a run that was not; but a sample missing, repeated or at another's ordinal
shows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stoker.plan.mixing import FIRST, GOLDEN, MASK, Words, derived_key

_FIRST, _32, _ONE = np.uint64(FIRST), np.uint64(32), np.uint64(1)
_TWICE = np.uint64(2 * GOLDEN & MASK)  # even, so that with one added every ordinal has an odd number of its own


def digests(epoch: int, ordinals: NDArray[np.int64], positions: NDArray[np.int64]) -> Words:
    """Return the hash of each (epoch, ordinal, position): the position mixed, times an odd number from the ordinal.

    One mix, not two, because this runs for every sample ever served.
    """
    words: Words = positions.view(np.uint64) + np.uint64(derived_key(epoch))
    words *= _FIRST
    words ^= words >> _32
    odd = ordinals.view(np.uint64) * _TWICE
    odd += _ONE
    words *= odd
    return words


def added(first: int, second: int) -> int:
    """Return the digest of two parts of a run together."""
    return (first + second) & MASK
