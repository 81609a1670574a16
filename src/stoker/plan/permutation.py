"""A shuffle that is computed, not stored.

A `Permutation` maps any index in `range(size)` to another one, and back, at a cost that does not depend on `size`. It
is a Feistel network on pairs: an index is written as (left, right) with left < a, right < b and a * b just above
`size`; each round adds a keyed hash of one half to the other, modulo a or b. That is a bijection of range(a * b) for
any hash. Results outside range(size), fewer than one in sqrt(size), go through the network again until they are inside
("cycle walking"), which keeps it a bijection.

Shapes: all arrays are [n], for n indices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from stoker.plan.mixing import FIRST, SECOND, Words, derived_key, mix

MAX_SIZE = 1 << 62
"""Up to here both halves are below 2**32, so that no product overflows 64 bits."""

NUM_ROUNDS = 6
"""Four rounds of a strong hash are indistinguishable from random for large halves; two more are for halves of five
bits. The tests of uniformity fail at three rounds.
"""

SORTED_BELOW = 1024
"""Below this size, all indices are sorted by a hash instead: as random as the hash, which a network of tiny halves is
not, and quicker."""

_FIRST, _SECOND, _32 = np.uint64(FIRST), np.uint64(SECOND), np.uint64(32)


@lru_cache(maxsize=512)
def permutation(size: int, key: int) -> Permutation:
    """Return the permutation of range(size) for `key`; the most recent ones are kept."""
    return Permutation(size, key)


@dataclass(frozen=True)
class Permutation:
    """A keyed bijection of range(size). Equal keys and sizes give equal maps, in every version. Safe to use from
    threads.
    """

    size: int
    key: int

    def forward(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where each index goes."""
        return self._sorted[0][indices] if self.size < SORTED_BELOW else self._walked(indices, inverse=False)

    def inverse(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where each index came from."""
        return self._sorted[1][indices] if self.size < SORTED_BELOW else self._walked(indices, inverse=True)

    @cached_property
    def _sorted(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        hashes = mix(np.arange(self.size, dtype=np.uint64) + np.uint64(self.key))
        forward = np.argsort(hashes, kind="stable").astype(np.int64)
        backward = np.empty_like(forward)
        backward[forward] = np.arange(self.size)
        return forward, backward

    @cached_property
    def _sides(self) -> tuple[int, int]:
        """The numbers of values (a, b) of the left and the right half.

        `b` is near the square root of the size, chosen so that a * b exceeds the size least: then few indices walk.
        """
        root = isqrt(self.size - 1) + 1
        nearby = range(root, root - min(64, root // 8) - 1, -1)
        right = min(nearby, key=lambda side: -self.size % side)
        return -(-self.size // right), right

    @cached_property
    def _round_keys(self) -> tuple[np.uint64, ...]:
        return tuple(np.uint64(derived_key(self.key, number)) for number in range(NUM_ROUNDS))

    def _walked(self, indices: NDArray[np.int64], *, inverse: bool) -> NDArray[np.int64]:
        size = np.uint64(self.size)
        words = self._network(np.asarray(indices).astype(np.uint64), inverse=inverse)
        outside = np.flatnonzero(words >= size)
        while outside.size:
            words[outside] = self._network(words[outside], inverse=inverse)
            outside = outside[words[outside] >= size]
        return words.view(np.int64)

    def _network(self, words: Words, *, inverse: bool) -> Words:
        num_left, num_right = self._sides
        width = np.uint64(num_right)
        left = words // width
        right = words - left * width
        halves = ((left, np.uint64(num_left), right), (right, width, left))
        scratch, high = np.empty_like(left), np.empty_like(left)
        rounds = range(NUM_ROUNDS)
        for number in reversed(rounds) if inverse else rounds:
            target, sides, other = halves[number % 2]
            # scratch = hash(other) scaled to range(sides) by its upper 32 bits
            np.add(other, self._round_keys[number], out=scratch)
            scratch *= _FIRST
            np.right_shift(scratch, _32, out=high)
            scratch ^= high
            scratch *= _SECOND
            scratch >>= _32
            scratch *= sides
            scratch >>= _32
            # addition modulo `sides`: of x and x - sides one is in range, the other wraps round to a huge number
            if inverse:
                np.subtract(target, scratch, out=target)
                np.add(target, sides, out=scratch)
            else:
                target += scratch
                np.subtract(target, sides, out=scratch)
            np.minimum(target, scratch, out=target)
        left *= width
        left += right
        return left
