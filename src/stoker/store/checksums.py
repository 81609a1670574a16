"""Blocks and their checksums."""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

BLOCK_BYTES = 64 << 10
"""Size of a block, which has one checksum: about the kernel's read-ahead, so that verifying a crop adds little I/O.
Hashing it takes less than two microseconds. Arrays and the body are aligned to it, too: no system maps files by larger
pages.
"""


def checksum(data: Any) -> int:
    """Return the xxh3_64 of bytes."""
    return xxhash.xxh3_64_intdigest(data)


def num_blocks_in(num_bytes: int) -> int:
    """Return the number of blocks in this many bytes."""
    return -(-num_bytes // BLOCK_BYTES)


def num_checksums_for(num_bytes: int) -> int:
    """Return the length of the array of checksums: a multiple of a block, so that the body is aligned."""
    per_block = BLOCK_BYTES // 8
    return -(-num_blocks_in(num_bytes) // per_block) * per_block


class RunningChecksums:
    """Computes the checksums of blocks from parts of any size."""

    def __init__(self) -> None:
        self._sums: list[int] = []
        self._hash = xxhash.xxh3_64()
        self._num_hashed = 0

    def update(self, data: memoryview) -> None:
        """Add the next bytes."""
        at = 0
        while at < len(data):
            if not self._num_hashed and len(data) - at >= BLOCK_BYTES:  # a complete block: the fast path
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
        """Return the checksums of all blocks of `num_bytes` bytes, padded with zeros."""
        if self._num_hashed:
            self._end_block()
        assert len(self._sums) == num_blocks_in(num_bytes)
        sums = np.zeros(num_checksums_for(num_bytes), "<u8")
        sums[: len(self._sums)] = self._sums
        return sums
