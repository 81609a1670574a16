"""Memory of batches: a slot shared with the trainer where there is one, else a pool of blocks that are reused.

Fresh memory of a batch's size comes from the system page by page, which takes longer than filling it.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

MAX_BLOCKS = 16
"""Blocks that a pool keeps. Batches held beyond that many get memory that is not reused."""

POOLED_BYTES = 64 << 10
"""Below this, the C library reuses memory by itself."""

_ALIGNMENT = 64

Take = Callable[[int], tuple[Any, int]]
"""Called with a number of bytes, returns a buffer and the offset in it at which so many are free."""


class BatchSlot(Protocol):
    """The shared memory of one batch."""

    def take(self, num_bytes: int, /) -> tuple[Any, int]:
        """Return a buffer and the offset in it at which so many bytes are free. What was taken before may move."""
        ...

    def clear(self) -> None:
        """Start again from the beginning: the batch is built a second time."""
        ...


class BatchMemory(Protocol):
    """Where arrays of a batch are allocated."""

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike, /) -> NDArray[Any]:
        """Return an array to be filled."""
        ...


class SlotMemory:
    """Arrays in a slot, one behind the other."""

    __slots__ = ("_buffer", "_take", "has_moved")

    def __init__(self, slot: BatchSlot) -> None:
        self._take = slot.take
        self._buffer: Any = None
        self.has_moved = False
        """Whether the slot was exchanged for a larger one between two arrays."""

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return an array in the slot."""
        kind = np.dtype(dtype)
        num_bytes = kind.itemsize
        for size in shape:
            num_bytes *= size
        buffer, offset = self._take(num_bytes)
        if buffer is not self._buffer:
            self.has_moved = self._buffer is not None
            self._buffer = buffer
        return np.ndarray(shape, kind, buffer, offset)


def _num_references(blocks: list[NDArray[np.uint8]], at: int) -> int:
    return sys.getrefcount(blocks[at])


_ONLY_OURS = _num_references([np.empty(1, np.uint8)], 0)
"""References to a block that only the list holds: how many the call itself counts for differs between Pythons."""


class Pool:
    """Blocks of memory. A block is free when no array or tensor views it, which its reference count shows.

    The first free one is taken, so that no more of them alternate, and occupy the processor's cache, than needed.
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
        """Return an array to be filled. Its memory is reused when it, and all views of it, are gone."""
        kind = np.dtype(dtype)
        num_bytes = math.prod(shape) * kind.itemsize
        if num_bytes < POOLED_BYTES:
            return np.empty(shape, kind)
        with self._lock:
            at = self._free_block(num_bytes + _ALIGNMENT)
            return np.ndarray(shape, kind, self._blocks[at], self._starts[at])

    def _free_block(self, num_bytes: int) -> int:
        """Return the index of a free block, a new one if there is none."""
        for at in range(len(self._blocks)):
            if _num_references(self._blocks, at) == _ONLY_OURS and num_bytes <= self._sizes[at] <= 2 * num_bytes:
                return at
        block = np.empty(num_bytes, np.uint8)
        if len(self._blocks) == MAX_BLOCKS:
            for column in (self._blocks, self._sizes, self._starts):
                del column[0]
        self._blocks.append(block)
        self._sizes.append(num_bytes)
        self._starts.append(-block.ctypes.data % _ALIGNMENT)
        return len(self._blocks) - 1


class _PlacedThread(threading.local):
    take: Take | None = None


_local = _PlacedThread()


class placed:  # noqa: N801  # a context manager by class: by a generator it would take as long as a small batch's copy
    """Let this thread collate into memory from `take`."""

    __slots__ = ("_previous", "_take")

    def __init__(self, take: Take) -> None:
        self._take = take

    def __enter__(self) -> None:
        self._previous, _local.take = _local.take, self._take

    def __exit__(self, *_: object) -> None:
        _local.take = self._previous


def is_placed() -> bool:
    """Return whether there is memory that this thread collates into."""
    return _local.take is not None


def placed_array(shape: tuple[int, ...], dtype: Any, num_bytes: int) -> np.ndarray[Any, Any]:
    """Return an array to be filled, in the memory that this thread collates into."""
    assert _local.take is not None
    return np.ndarray(shape, dtype, *_local.take(num_bytes))
