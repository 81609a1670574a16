"""The trainer's side of the slots: which are free, and when one may be used again.

A slot is *leased* with its batch: every tensor of the batch views the lease, and when the last of them is gone the slot
comes back. Batches that are kept make the ring grow; when they are freed, it shrinks again. So does a slot that is
much bigger than what recent batches needed.
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

from stoker.engine.processes.forks import Guard, watch
from stoker.engine.slots.arena import (
    END_OF_ADDRESSES,
    WINDOW_BYTES,
    Addresses,
    Arena,
    Extent,
    beyond_longest_file,
    longest_file,
    whole_pages,
)
from stoker.engine.slots.recent_sizes import SLACK, RecentSizes, roomy
from stoker.errors import OutOfSharedMemory

WINDOW = 64
"""Leases over which the number of slots in use at once is watched, before slots that were not needed are freed."""

LOOK_LEASES = 16
"""After so many leases, slots that are bigger than recent batches need are looked for."""

FIRST_WINDOW_BYTES = 16 << 20
"""Addresses of a slot where files are limited and no batch was seen yet, or so much of the limit: 1 / 256."""


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

    __slots__ = (
        "address",
        "extent",
        "guards",
        "is_apart",
        "is_leased",
        "is_locked",
        "kind",
        "memory",
        "number",
        "turn",
        "used",
        "window",
    )

    def __init__(self, number: int, window: Extent) -> None:
        self.number = number
        self.window = window
        """Addresses of the file that nothing else uses."""
        self.extent = Extent(window.offset, 0)
        """The part of them behind which there is memory."""
        self.memory: memoryview | None = None
        self.kind: Any = None
        self.address = 0
        self.used = END_OF_ADDRESSES
        """What its batch needs of it; more than there is while that is unknown."""
        self.turn = 0
        """Which lease of the ring it is on, or was."""
        self.is_apart = False
        """Its batch came in a file of its own, because it did not fit into the window."""
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
        self.num_slots = 0
        self._addresses = Addresses()
        self._is_limited = False
        """Whether the length of files is, so that windows are small."""
        self.sizes = RecentSizes()
        """What batches needed of their slots, as their replies say."""
        self._loose: deque[tuple[int, Slot]] = deque()
        """Leased slots that have much more memory than their batches need, with the turn of the lease."""
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

    # ------------------------------------------------------------ sizes

    def reserve(self, num_bytes: int) -> Extent:
        """Return memory for something other than batches."""
        with self._lock:
            window = self._addresses.take(num_bytes, end=longest_file())
            if window is None:
                raise beyond_longest_file(num_bytes)
            try:
                return self.arena.grown(Extent(window.offset, 0), window.num_bytes)
            except OutOfSharedMemory:
                self._addresses.give_back(window)
                raise

    def release(self, extent: Extent) -> None:
        """Give back what `reserve` has returned."""
        if self.is_foreign:
            return
        with self._lock:
            self.arena.empty(extent.offset, extent.stop)
            self._addresses.give_back(extent)

    def _window(self, num_bytes: int = 0) -> Extent:
        """Return a window for a slot.

        Where files are limited there may be none left: batches then come in files of their own.
        """
        longest = longest_file()
        self._is_limited = longest < END_OF_ADDRESSES
        if not self._is_limited:
            return self._addresses.take(WINDOW_BYTES) or Extent(0, 0)
        enough = self._least_window(num_bytes)
        if not enough:
            enough = whole_pages(min(FIRST_WINDOW_BYTES, longest // 256))
        window = self._addresses.take(2 * enough, end=longest) or self._addresses.take(enough, end=longest)
        return window or Extent(0, 0)

    def _least_window(self, num_bytes: int = 0) -> int:
        """Return how many addresses a batch of that size, or the usual one, should have where files are limited."""
        needed = max(num_bytes, self.sizes.usual_bytes)
        return roomy(needed) if needed else 0

    def _move(self, slot: Slot, num_bytes: int = 0) -> None:
        """Give a free slot a bigger window, if there is one."""
        self._forget(slot)
        self._addresses.give_back(slot.window)
        slot.window = Extent(0, 0)
        slot.window = self._window(num_bytes)
        slot.extent = Extent(slot.window.offset, 0)

    def make_room(self, slot: Slot, num_bytes: int) -> None:
        """Let a free slot have at least `num_bytes`."""
        if slot.extent.num_bytes >= num_bytes and not slot.is_apart:
            return
        with self._lock:
            room = min(slot.window.stop, longest_file()) - slot.window.offset
            if room < num_bytes:
                self._move(slot, num_bytes)
                room = slot.window.num_bytes
            if room < num_bytes:
                raise beyond_longest_file(num_bytes)
            self.adopt(slot, self.arena.grown(slot.extent, min(roomy(num_bytes), room)))

    # ------------------------------------------------------------ leases

    def take(self) -> Slot:
        """Return a free slot, a new one if there is none."""
        with self._lock:
            return self._taken()

    def _taken(self) -> Slot:
        self._is_resting = False
        if not self._free:
            self._sort_in()
        # the one that was used last: it is the likeliest to be in the processor's cache still
        slot = self._free.pop() if self._free else self._new()
        if self._is_limited and slot.window.num_bytes < self._least_window():
            self._move(slot)
        in_use = self.num_slots - len(self._free) - len(self._returned)
        if in_use > self._most:
            self._most = in_use
        self._num_leases = slot.turn = turn = self._num_leases + 1
        slot.used = END_OF_ADDRESSES
        if turn % LOOK_LEASES == 0:
            self._fit(turn - WINDOW)
            if turn % WINDOW == 0:
                self._most_before, self._most = self._most, in_use
                while self._free and self.num_slots > max(self._most, self._most_before):
                    self._retire(self._free.pop(0))
        return slot

    def _new(self) -> Slot:
        slot = Slot(self._numbers.pop() if self._numbers else self.num_slots, self._window())
        self.num_slots += 1
        self._slots[slot.number] = slot
        return slot

    def adopt(self, slot: Slot, extent: Extent) -> None:
        """Note that the slot's memory is now `extent` of its window, and not what it was."""
        if not extent.num_bytes:
            self._forget(slot)
            return
        self._unmap(slot)
        try:
            self._map(slot, self.arena, extent)
        except OutOfSharedMemory:
            self._empty(slot)
            raise
        slot.extent = extent  # last: after Ctrl-C it is adopted again

    def adopt_apart(self, slot: Slot, file: Arena, extent: Extent) -> None:
        """Note that the slot's batch has come in a file of its own. When it is gone, so is the file."""
        self._forget(slot)
        self._map(slot, file, extent)
        slot.is_apart = True

    def _map(self, slot: Slot, file: Arena, extent: Extent) -> None:
        slot.memory = memory = file.mapped(extent)
        slot.kind = ctypes.c_char * extent.num_bytes
        slot.address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        if self.page_lock is not None:
            slot.is_locked = self.page_lock.lock(slot.address, extent.num_bytes)

    def _unmap(self, slot: Slot) -> None:
        """Let go of the slot's memory: unlocked first, because a driver must not see it vanish."""
        self._unlock(slot)
        slot.memory = slot.kind = None
        slot.is_apart = False

    def _fit(self, turn: int) -> None:
        """Give memory back that recent batches do not need, nor those that are leased since before `turn`."""
        self._sort_in()
        if any(slot.is_apart or slot.extent.num_bytes > self.sizes.most_bytes for slot in self._free):
            # a finalizer that runs meanwhile must not retire what is at work here
            free, self._free = self._free, []
            try:
                for slot in free:
                    self._shrink(slot)
            finally:
                self._free = free + self._free
        while self._loose and self._loose[0][0] <= turn:
            began, slot = self._loose.popleft()
            if slot.is_leased and slot.turn == began:
                # what is behind the batch: it stays mapped, and nothing of the batch lies there
                extent = Extent(slot.extent.offset, roomy(slot.used))
                self.arena.empty(extent.stop, slot.extent.stop)
                slot.extent = extent

    def _shrink(self, slot: Slot) -> None:
        """Give back the memory of a free slot beyond what recent batches need."""
        if slot.is_apart:
            self._forget(slot)
        elif slot.extent.num_bytes > self.sizes.most_bytes:
            extent = Extent(slot.extent.offset, roomy(self.sizes.usual_bytes))
            self._unmap(slot)
            self.arena.empty(extent.stop, slot.extent.stop)
            try:
                self._map(slot, self.arena, extent)
                slot.extent = extent
            except OutOfSharedMemory:
                self._empty(slot)

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
        if slot.extent.num_bytes > SLACK * slot.used and not slot.is_locked and not slot.is_apart:
            self._note_loose(slot)
        # Not at the interpreter's exit: a thread may still be reading the batch.
        finalize(lease, self.give_back, slot).atexit = False

    def _note_loose(self, slot: Slot) -> None:
        """Note a slot whose batch leaves most of it empty, and may be kept for long."""
        if slot.extent.num_bytes > SLACK * roomy(slot.used):
            self._loose.append((slot.turn, slot))

    def give_back(self, slot: Slot) -> None:
        """Note that a slot is free."""
        slot.is_leased = False
        self._returned.append(slot)
        if self._is_closed:
            self._retire_returned()
        elif self._is_resting and self.page_lock is None and not self.is_foreign:
            is_outsized = slot.is_apart or slot.extent.num_bytes > self.sizes.most_bytes
            if is_outsized or len(self._returned) + len(self._free) > self._num_kept:
                self._trim()

    def rest(self, num_kept: int) -> None:
        """An iteration is over: keep so many slots for the next one, and no more, whatever is still given back."""
        with self._lock:
            self._num_kept, self._is_resting = num_kept, True
            self._most = self._most_before = 0
            self._fit(self._num_leases)
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
            self._set_free(returned)
            return
        # The trainer may have begun a copy to the device from a page-locked batch, and let go of it at once.
        if returned:
            self._cooling.append((self.page_lock.fence(), returned))
        while self._cooling and self._cooling[0][0]():
            self._set_free(self._cooling.popleft()[1])

    def _set_free(self, slots: list[Slot]) -> None:
        most_bytes = self.sizes.most_bytes
        for slot in slots:
            if slot.extent[1] > most_bytes or slot.is_apart:
                self._shrink(slot)
        self._free += slots

    def _retire(self, slot: Slot) -> None:
        self._forget(slot)
        if not slot.guards:
            self._addresses.give_back(slot.window)
        del self._slots[slot.number]
        self._numbers.append(slot.number)
        self.num_slots -= 1

    def _forget(self, slot: Slot) -> None:
        """Let go of the slot's memory, and give it back."""
        self._unmap(slot)
        if _is_unguarded(slot):
            self._empty(slot)

    def _empty(self, slot: Slot) -> None:
        """Give back the memory of the whole window, also what a worker has put there that died before it said so."""
        self.arena.empty(slot.window.offset, slot.window.stop)
        slot.extent = Extent(slot.window.offset, 0)

    def empty_behind(self, slot: Slot) -> None:
        """Give back what a worker that is dead may have put behind the slot's memory."""
        self.arena.empty(slot.extent.stop, slot.window.stop)

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
