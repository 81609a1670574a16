"""Slots: a lease ends with its last view, a ring grows and shrinks, forked children see what they were born with."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from stoker.engine.slots.arena import Arena, Extent
from stoker.engine.slots.batch_pickle import BatchPickler, unpickle_batch
from stoker.engine.slots.ring import WINDOW, Ring, Slot
from stoker.engine.slots.slot_writer import SlotWriter

NUMBERS = 8192
"""Numbers of 8 bytes in a batch: more than what travels inside the message."""


class Loop:
    """A worker and a trainer in one process: batches go through the slots of a ring."""

    def __init__(self, page_lock: Any = None) -> None:
        self.ring = Ring(page_lock)
        self.desk = SlotWriter(self.ring.arena)
        self.packer = BatchPickler(self.desk)

    def filled(self, batch: Any) -> tuple[Slot, bytes]:
        slot = self.ring.take()
        self.desk.open(slot.number, slot.extent, slot.window.stop, self.ring.sizes.usual_bytes)
        parcel = self.packer.packed(batch)
        self.desk.fit()
        if self.desk.file is not None:
            self.ring.adopt_apart(slot, self.desk.file, self.desk.extent)
            self.desk.leave()
        elif self.desk.extent != slot.extent:
            self.ring.adopt(slot, self.desk.extent)
        slot.used = self.desk.num_bytes
        self.ring.sizes.add(slot.used)
        return slot, parcel

    def sent(self, value: int, size: int = NUMBERS) -> torch.Tensor:
        """Return a batch full of `value`, as it arrives."""
        slot, parcel = self.filled(torch.full((size,), value))
        arrived: torch.Tensor = unpickle_batch(parcel, self.ring.lease(slot))
        return arrived

    @property
    def held_bytes(self) -> int:
        """How much memory is really there."""
        return os.fstat(self.ring.arena.descriptor).st_blocks * 512

    def close(self) -> None:
        self.ring.close()
        vars(self.packer).clear()


@pytest.fixture
def loop() -> Any:
    made = Loop()
    yield made
    made.close()
    vars(made).clear()  # the test runner holds on to fixtures for longer


def test_a_slot_is_used_again_when_its_batch_is_gone(loop: Loop) -> None:
    for value in range(10):
        assert (loop.sent(value) == value).all()
    assert loop.ring.num_slots == 1


@pytest.mark.parametrize(
    "part",
    [
        lambda batch: batch,
        lambda batch: batch[5:50],
        lambda batch: batch.view(64, -1).t()[3],
        lambda batch: batch.numpy(),
        lambda batch: batch.numpy()[7:9],
        lambda batch: torch.from_numpy(batch.numpy()[::2]),
        lambda batch: batch.untyped_storage(),
        lambda batch: memoryview(batch.numpy())[:80],
        lambda batch: {"a": [batch[1:2]]},
        lambda batch: lambda: batch,
    ],
)
def test_any_view_of_a_batch_keeps_its_slot(loop: Loop, part: Callable[[Any], Any]) -> None:
    batch = loop.sent(7)
    copy = batch.clone()
    kept = part(batch)
    whole = weak(batch)
    del batch
    for value in range(20):
        loop.sent(value + 100)
    assert loop.ring.num_slots == 2
    if whole() is not None:
        assert torch.equal(whole(), copy)
    if isinstance(kept, torch.Tensor | np.ndarray):
        assert (kept == 7).all()
    del kept
    gc.collect()
    first, second = loop.sent(1), loop.sent(2)
    assert loop.ring.num_slots == 2  # it has come back
    assert (first == 1).all()
    assert (second == 2).all()


def weak(tensor: torch.Tensor) -> Callable[[], Any]:
    return weakref.ref(tensor)


def test_batches_that_are_kept_never_change(loop: Loop) -> None:
    kept = [loop.sent(value, size=NUMBERS + 512 * (value % 7)) for value in range(60)]
    assert loop.ring.num_slots == 60
    del kept[::3]
    for value in range(60):
        loop.sent(1000 + value)
    assert all((batch == value).all() for batch, value in zip(kept, [v for v in range(60) if v % 3]))


def test_a_ring_shrinks_when_kept_batches_are_let_go(loop: Loop) -> None:
    kept = [loop.sent(value) for value in range(100)]
    held = loop.held_bytes
    assert held >= 100 * 8 * NUMBERS
    del kept
    for value in range(3 * WINDOW):
        loop.sent(value)
    assert loop.ring.num_slots <= 8
    assert loop.held_bytes < held / 10


def test_a_slot_that_moves_gives_its_old_memory_back(loop: Loop) -> None:
    for size in range(1, 40):
        batch = loop.sent(size, size=NUMBERS * size)
        assert (batch == size).all()
        del batch
    assert loop.ring.num_slots == 1
    assert loop.held_bytes < 3 * 8 * NUMBERS * 40


def test_slots_take_no_descriptors(loop: Loop) -> None:
    kept = [loop.sent(0)]
    before = len(os.listdir("/proc/self/fd"))
    kept += [loop.sent(value) for value in range(50)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(kept) == 51


def test_kept_batches_outlive_their_ring() -> None:
    loop = Loop()
    kept = [loop.sent(value) for value in range(3)]
    descriptor = os.dup(loop.ring.arena.descriptor)
    loop.close()
    del loop
    gc.collect()
    assert all((batch == value).all() for value, batch in enumerate(kept))
    assert os.fstat(descriptor).st_blocks * 512 >= 3 * 8 * NUMBERS
    del kept
    gc.collect()
    assert os.fstat(descriptor).st_blocks * 512 < 8 * NUMBERS
    os.close(descriptor)


def test_nothing_has_a_name(loop: Loop) -> None:
    before = os.listdir("/dev/shm")
    kept = loop.sent(1)
    assert os.listdir("/dev/shm") == before
    assert "memfd:stoker-slots" in os.readlink(f"/proc/self/fd/{loop.ring.arena.descriptor}")
    assert (kept == 1).all()


# ---------------------------------------------------------------- page-locked slots


class FakeLock:
    """Notes what a driver would be asked for; copies are complete when the test says so."""

    def __init__(self) -> None:
        self.locked: dict[int, int] = {}
        self.is_complete = False
        self.allows = True

    def lock(self, address: int, num_bytes: int) -> bool:
        if self.allows:
            # it has to be readable, and not locked already
            assert all(address + num_bytes <= start or start + size <= address for start, size in self.locked.items())
            self.locked[address] = num_bytes
        return self.allows

    def unlock(self, address: int) -> None:
        ctypes_byte(address)  # still mapped
        del self.locked[address]

    def fence(self) -> Callable[[], bool]:
        return lambda: self.is_complete


def ctypes_byte(address: int) -> int:
    return ctypes.c_ubyte.from_address(address).value


def test_a_page_locked_slot_waits_for_copies_that_were_begun() -> None:
    lock = FakeLock()
    loop = Loop(lock)
    for value in range(4):
        loop.sent(value)
    assert loop.ring.num_slots == 4  # nobody has said that any copy is complete
    lock.is_complete = True
    for value in range(20):
        loop.sent(value)
    assert loop.ring.num_slots == 4
    assert len(lock.locked) == 4
    loop.close()
    assert not lock.locked


def test_locked_memory_is_unlocked_before_it_goes() -> None:
    lock = FakeLock()
    lock.is_complete = True
    loop = Loop(lock)
    for size in range(1, 20):
        loop.sent(size, size=NUMBERS * size)  # moves
    kept = loop.sent(5)
    loop.close()
    assert len(lock.locked) == 1  # what is kept stays locked
    del kept
    assert not lock.locked


def test_the_end_of_the_process_unlocks_what_is_kept() -> None:
    lock = FakeLock()
    loop = Loop(lock)
    kept = [loop.sent(5), loop.sent(6)]
    loop.ring.unlock()
    assert not lock.locked
    assert (kept[1] == 6).all()
    loop.close()


def test_memory_that_may_not_be_locked_works_all_the_same() -> None:
    lock = FakeLock()
    lock.allows = False
    loop = Loop(lock)
    assert (loop.sent(4) == 4).all()
    loop.close()


# ---------------------------------------------------------------- forks


class Child:
    """A forked child that answers questions about a tensor which it was born with."""

    def __init__(self, batch: torch.Tensor) -> None:
        question, self._ask = os.pipe()
        self._hear, answer = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(self._ask)
            while os.read(question, 1):
                # without torch's threads, which a fork does not have
                os.write(answer, b"%8d" % (-1 if (low := batch.numpy().min()) != batch.numpy().max() else low))
            os._exit(0)
        os.close(question)
        os.close(answer)

    def value(self) -> int:
        """Return what all numbers of the tensor are; -1 if they differ."""
        os.write(self._ask, b"?")
        return int(os.read(self._hear, 8))

    def end(self) -> None:
        os.close(self._ask)
        os.close(self._hear)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def test_a_forked_child_sees_its_batch_unchanged(loop: Loop) -> None:
    batch = loop.sent(7)
    child = Child(batch)
    del batch
    for value in range(30):
        loop.sent(100 + value)
        assert child.value() == 7
    grown = loop.ring.num_slots
    child.end()
    kept = [loop.sent(value) for value in range(grown)]
    assert loop.ring.num_slots == grown  # the child's slot serves again
    assert [int(batch[0]) for batch in kept] == list(range(grown))


def test_slots_are_guarded_by_every_child_that_saw_them(loop: Loop) -> None:
    batch = loop.sent(1)
    children = [Child(batch) for _ in range(3)]
    del batch
    for child in (children[1], children[0]):
        loop.sent(50)
        loop.sent(51)
        assert [each.value() for each in (children[2], child)] == [1, 1]
        child.end()
    loop.sent(52)
    assert children[2].value() == 1
    children[2].end()


def test_a_fork_without_batches_guards_nothing(loop: Loop) -> None:
    loop.sent(3)
    before = len(os.listdir("/proc/self/fd"))
    child = Child(torch.zeros(3))
    assert len(os.listdir("/proc/self/fd")) == before + 2  # the test's own pipes
    child.end()


def test_a_ring_that_is_closed_leaves_a_childs_batch_alone() -> None:
    loop = Loop()
    child = Child(loop.sent(9))
    loop.close()
    del loop
    gc.collect()
    assert child.value() == 9
    child.end()


def test_a_childs_own_end_gives_nothing_back(loop: Loop) -> None:
    """Finalizers run in the child, too: the slots are the parent's."""
    batch = loop.sent(4)
    child = os.fork()
    if not child:
        del batch
        loop.ring.close()
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    loop.sent(5)
    assert (batch == 4).all()


def test_an_empty_extent_needs_no_memory() -> None:
    arena = Arena()
    desk = SlotWriter(arena)
    desk.open(0, Extent(0, 0), 1 << 30, 0)
    assert desk.num_bytes == 0
    assert os.fstat(arena.descriptor).st_blocks == 0
