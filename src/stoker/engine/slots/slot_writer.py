"""The worker's side of a slot: where a batch is written."""

from __future__ import annotations

from typing import Any

import numpy as np

from stoker.engine.slots.arena import Arena, Extent, beyond_longest_file, longest_file
from stoker.engine.slots.recent_sizes import SLACK, roomy
from stoker.errors import OutOfSharedMemory

ALIGNMENT = 64
"""A cache line, and what vectorised copies like best."""


class _Mapped:
    """An extent in this process's memory, and the end of the addresses into which it may grow."""

    __slots__ = ("address", "arena", "end", "extent", "memory")

    def __init__(self, arena: Arena, extent: Extent, end: int) -> None:
        self.arena, self.extent, self.end = arena, extent, end
        self.memory: memoryview | None = arena.mapped(extent) if extent.num_bytes else None
        self.address = np.frombuffer(self.memory, np.uint8).ctypes.data if self.memory is not None else 0


class SlotWriter:
    """Takes pieces out of a slot, one after the other, and puts more memory behind it when it is full.

    Where the slot's window ends, or the longest file that there may be, the batch moves to a file of its own. Offsets
    count from the beginning of the extent and stay right. Used by one thread at a time.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._slots: dict[int, _Mapped] = {}
        self._number = -1
        self._at = self._home = _Mapped(arena, Extent(0, 0), 0)
        """Where the batch is, and where its slot is: not the same if the batch has moved to a file of its own."""
        self._moved_from: list[_Mapped] = []
        self._used = 0
        self._wanted = 0

    def open(self, number: int, extent: Extent, end: int, wanted: int) -> None:
        """Begin a batch in slot `number`, whose window ends at `end`; `wanted` is what recent batches needed."""
        mapped = self._slots.get(number)
        if self._moved_from:
            self._moved_from.clear()
        self._number, self._used, self._wanted = number, 0, wanted
        if mapped is None or mapped.extent != extent or mapped.end != end:
            # should mapping fail, the answer must not name the slot before
            self._at = self._home = _Mapped(self._arena, Extent(extent.offset, 0), end)
            self._slots[number] = mapped = _Mapped(self._arena, extent, end)
        self._at = self._home = mapped

    @property
    def extent(self) -> Extent:
        """Where the slot is now."""
        return self._at.extent

    @property
    def file(self) -> Arena | None:
        """The file of its own that the batch has moved to; None if it lies in its slot."""
        return None if self._at.arena is self._arena else self._at.arena

    @property
    def num_bytes(self) -> int:
        """How much of it is used."""
        return self._used

    def clear(self) -> None:
        """Start again from the beginning: the batch is built a second time."""
        self._used = 0

    def take(self, num_bytes: int) -> tuple[Any, int]:
        """Return a buffer and the offset in it at which `num_bytes` bytes are free to be written.

        What was taken before must be written by now: a batch that moves to another file is copied.
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

    def fit(self) -> None:
        """Give memory back that neither this batch needs nor, but for exceptions, the recent ones."""
        at, enough = self._at, self._used
        if at.extent[1] <= SLACK * enough:
            return
        enough = max(enough, self._wanted)
        if at.extent.num_bytes <= SLACK * roomy(enough):
            return
        extent = Extent(at.extent.offset, roomy(enough))
        at.arena.empty(extent.stop, at.extent.stop)
        self._move(_Mapped(at.arena, extent, at.end))

    def leave(self) -> None:
        """Let go of the file that the batch has moved to."""
        self._moved_from.clear()
        self._at = self._home

    def _grow(self, num_bytes: int) -> None:
        at, size = self._at, roomy(num_bytes)
        if self._wanted > num_bytes:  # more is likely to follow: do not grow in many small steps
            size = max(size, min(roomy(self._wanted), SLACK * size))
        longest = longest_file()
        room = min(at.end, longest) - at.extent.offset
        if num_bytes <= room:
            self._move(_grown(at.arena, at.extent, min(size, room), at.end))
            return
        if num_bytes > longest:
            raise beyond_longest_file(num_bytes)
        apart = _grown(Arena(), Extent(0, 0), min(size, longest), longest)
        if self._used:
            assert at.memory is not None
            assert apart.memory is not None
            _bytes(apart.memory, self._used)[:] = _bytes(at.memory, self._used)
        self._move(apart)

    def _move(self, mapped: _Mapped) -> None:
        self._moved_from.append(self._at)
        self._at = mapped
        if mapped.arena is self._arena:
            self._slots[self._number] = self._home = mapped


def _grown(arena: Arena, extent: Extent, num_bytes: int, end: int) -> _Mapped:
    grown = arena.grown(extent, num_bytes)
    try:
        return _Mapped(arena, grown, end)
    except OutOfSharedMemory:
        arena.empty(extent.stop, grown.stop)
        raise


def _bytes(memory: memoryview, num_bytes: int) -> Any:
    return np.frombuffer(memory, np.uint8, num_bytes)
