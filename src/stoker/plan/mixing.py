"""Hashing integers: the one source of pseudo-randomness in a plan.

The arithmetic must never change: a plan means the same on every machine and NumPy version.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint64]

# Odd multipliers with well-spread bits (those of the SplitMix64 finalizer).
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB
GOLDEN = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1

_FIRST, _SECOND = np.uint64(FIRST), np.uint64(SECOND)
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)


def mixed(word: int) -> int:
    """Return `word` with every bit depending on every other: a bijection of 64-bit words."""
    word = ((word ^ (word >> 30)) * FIRST) & MASK
    word = ((word ^ (word >> 27)) * SECOND) & MASK
    return word ^ (word >> 31)


def mix(words: Words) -> Words:
    """Apply `mixed` to every element, in place, and return the array."""
    shifted = words >> _30
    words ^= shifted
    words *= _FIRST
    np.right_shift(words, _27, out=shifted)
    words ^= shifted
    words *= _SECOND
    np.right_shift(words, _31, out=shifted)
    words ^= shifted
    return words


def derived_key(*parts: int) -> int:
    """Return a 64-bit key that depends on every part and on their order. Parts may be of any size or sign."""
    key = len(parts)
    for part in parts:
        key = mixed((key * GOLDEN + (part & MASK)) & MASK)
        part >>= 64
        while part not in (0, -1):
            key = mixed((key * GOLDEN + (part & MASK)) & MASK)
            part >>= 64
    return key
