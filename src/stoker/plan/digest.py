"""A running digest of what was served, so that two runs can be compared.

The digest is the sum, modulo 2**64, of one hash per sample of (epoch, slot, position). A sum does not depend on who
served a sample, in which batch or how late, so the digests of all ranks add up to that of a single rank, and a run that
was stopped and resumed ends with that of a run that was not; but a sample missing, repeated or in another's slot shows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stoker.plan.mixing import MASK, Words, derived_key, mix


def digests(epoch: int, slots: NDArray[np.int64], positions: NDArray[np.int64]) -> Words:
    """Return the hash of each (epoch, slot, position)."""
    words = slots.astype(np.uint64)
    words += np.uint64(derived_key(epoch))
    mix(words)
    words ^= positions.view(np.uint64) if positions.flags.c_contiguous else positions.astype(np.uint64)
    return mix(words)


def added(first: int, second: int) -> int:
    """Return the digest of two parts of a run together."""
    return (first + second) & MASK
