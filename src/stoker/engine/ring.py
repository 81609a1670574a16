"""The trainer's side of the slots: which are free, and when one may be used again.

A slot is *leased* with its batch: every tensor of the batch views the lease, and when the last of them is gone the slot
comes back. Whoever keeps batches makes the ring grow; when they are let go, it shrinks again.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakSet, finalize

from stoker.engine.arena import REGION_BYTES, Arena, Extent
from stoker.engine.forks import Guard, watch

WINDOW = 64
"""Leases over which the number of slots in use at once is watched, before slots that were not needed are freed."""


class PageLock(Protocol):
    """Locks memory into place, so that an accelerator can read it by itself."""

    def lock(self, address: int, num_bytes: int) -> bool:
        """Lock; return whether that was allowed."""
        ...

    def unlock(self, address: int) -> None:
        """Unlock, before the memory is unmapped."""
        ...

    def fence(self) -> Callable[[], bool]:
        """Return what tells whether every copy begun before now is complete."""
        ...


class Slot:
    """One batch's memory."""

    __slots__ = ("address", "extent", "guards", "is_leased", "is_locked", "kind", "memory", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.extent = Extent(0, 0)
        self.memory: memoryview | None = None
        self.kind: Any = None
        self.address = 0
        self.is_locked = self.is_leased = False
        self.guards: list[Guard] = []
        """Of forked children that have seen the batch in it."""


class Ring:
    """The slots of one loader, for as long as it lives."""

    def __init__(self, page_lock: PageLock | None = None, *, is_watched: bool = False) -> None:
        self.arena = Arena()
        self.page_lock = page_lock
        self.is_watched = is_watched
        """Whoever copies from the slots to a device keeps the batch until the copy is complete, and hands no part of it
        on that is still in the slot."""
        self.num_regions = 0
        self.wanted_bytes = 0
        """What the largest batch so far needed."""
        self.num_slots = 0
        self._numbers: list[int] = []
        """Those of slots that are no more, to be used again."""
        self._slots: dict[int, Slot] = {}
        self._free: list[Slot] = []
        self._returned: deque[Slot] = deque()  # appended to by finalizers, which may run at any point of any thread
        self._cooling: deque[tuple[Callable[[], bool], list[Slot]]] = deque()
        self._guarded: list[Slot] = []
        self._num_kept, self._is_resting = 0, False
        self._num_leases = 0
        self._most = self._most_before = 0
        self._is_closed = False
        self._process = os.getpid()
        # Several iterators may take slots in several threads. Reentrant, because a finalizer may run at any point.
        self._lock = threading.RLock()
        watch(self)
        if page_lock is not None:
            _locking.add(self)

    @property
    def is_foreign(self) -> bool:
        """Whether this is a fork, in which the slots are the parent's."""
        return os.getpid() != self._process

    def unwatch(self) -> None:
        """From now on, parts of batches that are still in their slots may be copied by anyone."""
        self.is_watched = False

    def new_region(self) -> int:
        """Return the number of a region that nobody else has."""
        with self._lock:
            self.num_regions += 1
            return self.num_regions - 1

    def reclaim(self, region: int) -> None:
        """Free what nobody will use in the region of a process that is gone: all but the slots that are there."""
        start, stop = region * REGION_BYTES, (region + 1) * REGION_BYTES
        kept = sorted(slot.extent for slot in list(self._slots.values()) if start <= slot.extent.offset < stop)
        for extent in kept:
            self.arena.empty(start, extent.offset)
            start = extent.stop
        self.arena.empty(start, stop)

    def take(self) -> Slot:
        """Return a slot that nobody uses, a new one if need be."""
        with self._lock:
            return self._taken()

    def _taken(self) -> Slot:
        self._is_resting = False
        if not self._free:
            self._sort_in()
        # the one that was used last: it is the likeliest to be in the processor's cache still
        slot = self._free.pop() if self._free else self._new()
        in_use = self.num_slots - len(self._free) - len(self._returned)
        if in_use > self._most:
            self._most = in_use
        self._num_leases += 1
        if self._num_leases % WINDOW == 0:
            self._most_before, self._most = self._most, in_use
            self._sort_in()
            while self._free and self.num_slots > max(self._most, self._most_before):
                self._retire(self._free.pop(0))
        return slot

    def _new(self) -> Slot:
        slot = Slot(self._numbers.pop() if self._numbers else self.num_slots)
        self.num_slots += 1
        self._slots[slot.number] = slot
        return slot

    def adopt(self, slot: Slot, extent: Extent) -> None:
        """Note that a worker has moved the slot to a bigger extent."""
        self._forget(slot)
        slot.memory = memory = self.arena.mapped(extent)
        slot.kind = ctypes.c_char * extent.num_bytes
        slot.address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        if self.page_lock is not None:
            slot.is_locked = self.page_lock.lock(slot.address, extent.num_bytes)
        slot.extent = extent  # last: after an interrupt it is adopted anew

    def lease(self, slot: Slot) -> Any:
        """Return the slot's memory as an object that can be viewed; when it is gone, the slot is free."""
        lease = self.viewed(slot)
        self.lend(slot, lease)
        return lease

    def viewed(self, slot: Slot) -> Any:
        """Return the slot's memory as an object that can be viewed, before it is lent."""
        return slot.kind.from_buffer(slot.memory)

    def lend(self, slot: Slot, lease: Any) -> None:
        """Let the slot be free when `lease` is gone."""
        slot.is_leased = True
        # Not at the interpreter's exit: whoever holds the batch then may still be reading it.
        finalize(lease, self.give_back, slot).atexit = False

    def give_back(self, slot: Slot) -> None:
        """Note that nobody uses a slot any more."""
        slot.is_leased = False
        self._returned.append(slot)
        if self._is_closed:
            self._retire_returned()
        elif self._is_resting and self.page_lock is None and len(self._returned) + len(self._free) > self._num_kept:
            self._trim()

    def rest(self, num_kept: int) -> None:
        """An iteration is over: keep so many slots for the next one, and no more, whatever is still given back."""
        with self._lock:
            self._num_kept, self._is_resting = num_kept, True
            self._most = self._most_before = 0
            self._trim()

    def _trim(self) -> None:
        with self._lock:
            self._sort_in()
            while len(self._free) > self._num_kept:
                self._retire(self._free.pop(0))

    def close(self) -> None:
        """Free what is free. Slots whose batches are still kept are freed when those are gone."""
        if self.is_foreign:
            return
        with self._lock:
            self._close()

    def _close(self) -> None:
        self._is_closed = True
        for _, slots in self._cooling:
            self._returned.extend(slots)
        self._cooling.clear()
        self._returned.extend(self._free + self._guarded)
        self._free.clear()
        self._guarded.clear()
        self._retire_returned()

    def unlock(self) -> None:
        """Unlock all slots, also those that are leased: the process is about to end."""
        if not self.is_foreign:
            for slot in list(self._slots.values()):
                self._unlock(slot)

    def _retire_returned(self) -> None:
        if self.is_foreign:
            return
        with self._lock:
            while self._returned:
                self._retire(self._returned.popleft())

    def is_concerned(self) -> bool:
        """Whether a fork would share a batch."""
        return not self.is_foreign and any(slot.is_leased for slot in list(self._slots.values()))

    def guard(self, guard: Guard) -> None:
        """Do not use slots with batches again that a forked child may be looking at."""
        for slot in list(self._slots.values()):
            if slot.is_leased:
                _is_unguarded(slot)  # forgets those that are over: a batch that is kept may see many forks
                slot.guards.append(guard)

    def _sort_in(self) -> None:
        returned, self._guarded = self._guarded, []
        while self._returned:
            returned.append(self._returned.popleft())
        if any(slot.guards for slot in returned):
            self._guarded = [slot for slot in returned if not _is_unguarded(slot)]
            returned = [slot for slot in returned if not slot.guards]
        if self.page_lock is None or self.is_watched:
            self._free.extend(returned)
            return
        # The trainer may have begun a copy to the device from a page-locked batch, and let go of it at once.
        if returned:
            self._cooling.append((self.page_lock.fence(), returned))
        while self._cooling and self._cooling[0][0]():
            self._free.extend(self._cooling.popleft()[1])

    def _retire(self, slot: Slot) -> None:
        self._forget(slot)
        del self._slots[slot.number]
        self._numbers.append(slot.number)
        self.num_slots -= 1

    def _forget(self, slot: Slot) -> None:
        """Let go of the slot's memory: unlocked first, because a driver must not see it vanish."""
        if slot.memory is None:
            return
        self._unlock(slot)
        if _is_unguarded(slot):
            self.arena.empty(slot.extent.offset, slot.extent.stop)
        slot.memory = slot.kind = None
        slot.extent = Extent(0, 0)

    def _unlock(self, slot: Slot) -> None:
        if slot.is_locked:
            assert self.page_lock is not None
            self.page_lock.unlock(slot.address)
            slot.is_locked = False


def _is_unguarded(slot: Slot) -> bool:
    slot.guards = [guard for guard in slot.guards if not guard.is_over]
    return not slot.guards


_locking: WeakSet[Ring] = WeakSet()


@atexit.register
def _unlock_all() -> None:
    for ring in _locking:
        ring.unlock()
