"""Blocks and their checksums."""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

BLOCK_BYTES = 64 << 10
"""What one checksum is for: about as much as a kernel reads ahead, so that checking a crop reads little that would not
be read anyway. Hashing it takes less than two microseconds. Also what the arrays and the body are aligned to: no system
has bigger pages that files are mapped by.
"""


def checksum(data: Any) -> int:
    """Return the xxh3_64 of bytes."""
    return xxhash.xxh3_64_intdigest(data)


def num_blocks_in(num_bytes: int) -> int:
    """Return how many blocks so many bytes are."""
    return -(-num_bytes // BLOCK_BYTES)


def num_checksums_for(num_bytes: int) -> int:
    """Return how many entries the array of checksums has: whole blocks of them, so that the body is aligned."""
    per_block = BLOCK_BYTES // 8
    return -(-num_blocks_in(num_bytes) // per_block) * per_block


class RunningChecksums:
    """The checksums of blocks whose bytes come in parts of any size."""

    def __init__(self) -> None:
        self._sums: list[int] = []
        self._hash = xxhash.xxh3_64()
        self._num_hashed = 0

    def update(self, data: memoryview) -> None:
        """Go on with these bytes."""
        at = 0
        while at < len(data):
            if not self._num_hashed and len(data) - at >= BLOCK_BYTES:  # a whole block: the quick way
                self._sums.append(checksum(data[at : at + BLOCK_BYTES]))
                at += BLOCK_BYTES
                continue
            part = data[at : at + BLOCK_BYTES - self._num_hashed]
            self._hash.update(part)
            self._num_hashed += len(part)
            at += len(part)
            if self._num_hashed == BLOCK_BYTES:
                self._end_block()

    def _end_block(self) -> None:
        self._sums.append(self._hash.intdigest())
        self._hash.reset()
        self._num_hashed = 0

    def result(self, num_bytes: int) -> NDArray[np.uint64]:
        """Return the checksums of all blocks of the `num_bytes` bytes that came, padded with zeros."""
        if self._num_hashed:
            self._end_block()
        assert len(self._sums) == num_blocks_in(num_bytes)
        sums = np.zeros(num_checksums_for(num_bytes), "<u8")
        sums[: len(self._sums)] = self._sums
        return sums
