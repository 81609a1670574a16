"""Memory for batches that are made in the trainer's own process: used again when nobody holds the batch any more.

Fresh memory of a batch's size comes from the system page by page, which takes longer than filling it.
"""

from __future__ import annotations

import math
import sys
import threading
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

MAX_BLOCKS = 16
"""Blocks that are kept. Whoever keeps more batches than that gets memory that is not used again."""

POOLED_BYTES = 64 << 10
"""Below this, the C library reuses memory by itself."""

_ALIGNMENT = 64


def _num_holders(blocks: list[NDArray[np.uint8]], at: int) -> int:
    return sys.getrefcount(blocks[at])


_NOBODY_ELSE = _num_holders([np.empty(1, np.uint8)], 0)
"""How many hold a block that only the list holds: how many the call itself counts for differs among Pythons."""


class Pool:
    """Blocks of memory. One is free when no array or tensor views it, which its count of references tells.

    The first that is free is taken, so that no more of them are in turn, and in the processor's cache, than need be.
    """

    def __init__(self) -> None:
        self._blocks: list[NDArray[np.uint8]] = []
        self._sizes: list[int] = []
        self._starts: list[int] = []
        """Where each block has its first aligned byte."""
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Pool, ()

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return an array to be filled. Its memory is used again when it, and all views of it, are gone."""
        kind = np.dtype(dtype)
        num_bytes = math.prod(shape) * kind.itemsize
        if num_bytes < POOLED_BYTES:
            return np.empty(shape, kind)
        with self._lock:
            at = self._free(num_bytes + _ALIGNMENT)
            return np.ndarray(shape, kind, self._blocks[at], self._starts[at])

    def _free(self, wanted: int) -> int:
        """Return the number of a block that nobody holds, a new one if need be."""
        for at in range(len(self._blocks)):
            if _num_holders(self._blocks, at) == _NOBODY_ELSE and wanted <= self._sizes[at] <= 2 * wanted:
                return at
        block = np.empty(wanted, np.uint8)
        if len(self._blocks) == MAX_BLOCKS:
            for of_blocks in (self._blocks, self._sizes, self._starts):
                del of_blocks[0]
        self._blocks.append(block)
        self._sizes.append(wanted)
        self._starts.append(-block.ctypes.data % _ALIGNMENT)
        return len(self._blocks) - 1
