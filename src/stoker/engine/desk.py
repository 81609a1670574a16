"""The worker's side of a slot: where a batch is written."""

from __future__ import annotations

from typing import Any

import numpy as np

from stoker.engine.arena import Arena, Extent, Region

ALIGNMENT = 64
"""A cache line, and what vectorised copies like best."""


class _Mapped:
    """An extent in this process's memory."""

    __slots__ = ("address", "extent", "memory")

    def __init__(self, arena: Arena, extent: Extent) -> None:
        self.extent = extent
        self.memory: memoryview | None = arena.mapped(extent) if extent.num_bytes else None
        self.address = np.frombuffer(self.memory, np.uint8).ctypes.data if self.memory is not None else 0


class Desk:
    """Takes pieces out of a slot, one after the other, and moves to a bigger one when it is full.

    Offsets count from the beginning of the extent and stay right when it moves. Used by one thread at a time.
    """

    def __init__(self, arena: Arena, region: Region) -> None:
        self._arena, self._region = arena, region
        self._slots: dict[int, _Mapped] = {}
        self._number = -1
        self._at = _Mapped(arena, Extent(0, 0))
        self._moved_from: list[_Mapped] = []
        self._given = Extent(0, 0)
        self._used = 0
        self._wanted = 0

    def open(self, number: int, extent: Extent, wanted: int) -> None:
        """Begin a batch in slot `number`; `wanted` is how big a slot should be, from what was seen so far."""
        mapped = self._slots.get(number)
        if mapped is None or mapped.extent != extent:
            self._slots[number] = mapped = _Mapped(self._arena, extent)
        if self._moved_from:
            self._leave_behind()
        self._number, self._at, self._used, self._wanted, self._given = number, mapped, 0, wanted, extent

    @property
    def extent(self) -> Extent:
        """Where the slot is now."""
        return self._at.extent

    @property
    def num_bytes(self) -> int:
        """How much of it is used."""
        return self._used

    def clear(self) -> None:
        """Begin anew: the batch is made a second time."""
        self._used = 0

    def take(self, num_bytes: int) -> tuple[Any, int]:
        """Return a buffer and the offset in it at which `num_bytes` bytes are free to be written.

        What was taken before must be written by now: moving to a bigger extent copies it.
        """
        start = -(-self._used // ALIGNMENT) * ALIGNMENT
        if start + num_bytes > self._at.extent.num_bytes:
            self._grow(start + num_bytes)
        self._used = start + num_bytes
        return self._at.memory, start

    def offset_of(self, address: int, num_bytes: int) -> int:
        """Return at which offset the memory at `address` lies, or -1 if it is not in this batch's slot."""
        for mapped in (self._at, *self._moved_from):
            offset = address - mapped.address
            if offset >= 0 and offset + num_bytes <= min(self._used, mapped.extent.num_bytes):
                return offset
        return -1

    def read(self, num_bytes: int) -> bytes:
        """Return the first bytes of the slot: a request too long for its message."""
        assert self._at.memory is not None
        return bytes(self._at.memory[:num_bytes])

    def _leave_behind(self) -> None:
        """Free what the batch before this one has moved out of, but for what was given: the trainer sees to that."""
        for mapped in self._moved_from:
            if mapped.extent != self._given:
                self._arena.empty(mapped.extent.offset, mapped.extent.stop)
        self._moved_from.clear()

    def _grow(self, num_bytes: int) -> None:
        # a quarter more, because batches that differ in size would otherwise move again and again
        bigger = _Mapped(self._arena, self._region.allocated(max(num_bytes + num_bytes // 4 + 4096, self._wanted)))
        if self._used:
            assert self._at.memory is not None
            assert bigger.memory is not None
            _bytes(bigger.memory, self._used)[:] = _bytes(self._at.memory, self._used)
            self._moved_from.append(self._at)
        self._slots[self._number] = self._at = bigger


def _bytes(memory: memoryview, num_bytes: int) -> Any:
    return np.frombuffer(memory, np.uint8, num_bytes)
