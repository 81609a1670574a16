"""The memory of slots follows what recent batches need: counted in the memory file itself."""

from __future__ import annotations

import os
import resource
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.engine.slots.arena import END_OF_ADDRESSES, WINDOW_BYTES, Addresses, Extent
from stoker.engine.slots.batch_pickle import SMALL_BYTES, unpickle_batch
from stoker.engine.slots.recent_sizes import NUM_RECENT, RARE, SLACK, RecentSizes, roomy
from stoker.engine.slots.ring import LOOK_LEASES, WINDOW
from stoker.errors import OutOfSharedMemory
from tests.engine.test_slots import FakeLock, Loop

SMALL, LARGE = 50_000, 5_000_000
"""Bytes; both are more than what travels inside the message."""


def bytes_of(loop: Loop, value: int, num_bytes: int) -> torch.Tensor:
    return loop.sent(value, num_bytes // 8)


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()
    vars(made).clear()


def test_one_large_batch_does_not_set_the_size_of_slots_after_it(loop: Loop) -> None:
    bytes_of(loop, 0, LARGE)
    kept = [bytes_of(loop, value, SMALL) for value in range(30)]
    assert loop.held_bytes < roomy(LARGE) + 30 * SLACK * roomy(SMALL)
    more = [bytes_of(loop, value, SMALL) for value in range(30 + WINDOW)]
    assert loop.held_bytes < (60 + WINDOW) * SLACK * roomy(SMALL) < 2 * LARGE * 4
    assert loop.held_bytes < len(kept + more) * roomy(SMALL) + 40 * SLACK * roomy(SMALL)
    assert all((batch == value).all() for value, batch in enumerate(kept))


@pytest.mark.parametrize("num_in_flight", [4, 16])
@pytest.mark.parametrize("num_batches", [24, 100])
def test_a_large_batch_in_every_epoch_costs_one_slot_at_a_time(num_in_flight: int, num_batches: int) -> None:
    loop = Loop()
    in_flight: deque[Any] = deque(maxlen=num_in_flight)
    peaks = []
    for _ in range(6):
        peak = 0
        for step in range(num_batches):
            in_flight.append(bytes_of(loop, step, LARGE if step == num_batches // 2 else SMALL))
            peak = max(peak, loop.held_bytes)
        peaks.append(peak)
    num_large = 1 + num_in_flight // num_batches
    assert max(peaks) <= (num_large + 1) * roomy(LARGE) + (num_in_flight + 2) * SLACK * roomy(SMALL)
    in_flight.clear()
    for step in range(2 * LOOK_LEASES):
        bytes_of(loop, step, SMALL)
    assert loop.held_bytes <= (num_in_flight + 2) * SLACK * roomy(SMALL)
    loop.close()
    vars(loop).clear()


class CountingLock(FakeLock):
    """Counts, and says at once that copies are complete."""

    def __init__(self) -> None:
        super().__init__()
        self.is_complete = True
        self.num_locked = 0

    def lock(self, address: int, num_bytes: int) -> bool:
        self.num_locked += 1
        return super().lock(address, num_bytes)


def note_calls(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, calls: list[str]) -> None:
    plain = getattr(owner, name)

    def noted(*given: Any) -> Any:
        calls.append(name)
        return plain(*given)

    monkeypatch.setattr(owner, name, noted)


@pytest.mark.parametrize("size", [SMALL, 8 * SMALL])
@pytest.mark.parametrize("is_watched", [False, True])
def test_equal_batches_allocate_map_and_lock_once(size: int, is_watched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = CountingLock()
    loop = Loop(lock)
    loop.ring.is_watched = is_watched
    in_flight: deque[Any] = deque(maxlen=6)
    for step in range(40):
        in_flight.append(bytes_of(loop, step, size))
    calls: list[str] = []
    for name in ("grown", "mapped", "empty"):
        note_calls(monkeypatch, type(loop.ring.arena), name, calls)
    for step in range(4 * WINDOW):
        in_flight.append(bytes_of(loop, step, size))
    assert calls == []
    assert lock.num_locked == loop.ring.num_slots <= 8
    in_flight.clear()
    loop.close()
    vars(loop).clear()


def test_batches_that_differ_within_reason_stop_moving(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [SMALL, 3 * SMALL, 2 * SMALL, 20 * SMALL]  # a large one in four is usual, however much larger it is
    in_flight: deque[Any] = deque(maxlen=3)
    for step in range(8 * WINDOW):
        in_flight.append(bytes_of(loop, step, sizes[step % 4]))
    calls: list[str] = []
    note_calls(monkeypatch, os, "posix_fallocate", calls)
    for step in range(2 * WINDOW):
        in_flight.append(bytes_of(loop, step, sizes[step % 4]))
    assert calls == []


@pytest.mark.parametrize("is_watched", [False, True])
def test_an_outsized_slot_is_unlocked_shrunk_and_locked_again(is_watched: bool) -> None:
    lock = CountingLock()
    loop = Loop(lock)
    loop.ring.is_watched = is_watched
    for step in range(2 * RARE):
        bytes_of(loop, step, SMALL)
    assert sum(lock.locked.values()) == roomy(SMALL)
    large = bytes_of(loop, 5, LARGE)
    assert sum(lock.locked.values()) == roomy(LARGE)  # the one slot there is
    assert (large == 5).all()
    del large
    kept = [bytes_of(loop, step, SMALL) for step in range(3)]
    assert sum(lock.locked.values()) <= 4 * roomy(SMALL)
    assert loop.held_bytes <= 4 * roomy(SMALL)
    assert [int(batch[0]) for batch in kept] == [0, 1, 2]
    del kept
    loop.close()
    assert not lock.locked
    vars(loop).clear()


def test_an_outsized_slot_waits_for_copies_before_it_shrinks() -> None:
    lock = CountingLock()
    loop = Loop(lock)
    for step in range(2 * RARE):
        bytes_of(loop, step, SMALL)
    lock.is_complete = False
    large = bytes_of(loop, 5, LARGE)
    del large
    for step in range(2 * LOOK_LEASES):
        bytes_of(loop, step, SMALL)
    assert max(lock.locked.values()) == roomy(LARGE)  # somebody may be copying from it
    lock.is_complete = True
    for step in range(LOOK_LEASES):
        bytes_of(loop, step, SMALL)
    assert max(lock.locked.values()) == roomy(SMALL)
    loop.close()
    vars(loop).clear()


def test_a_small_batch_that_is_kept_does_not_keep_the_memory_of_a_large_one(loop: Loop) -> None:
    """Large batches are usual here, so slots stay large; but a batch that is kept for long has its own size."""
    kept = []
    for step in range(3 * WINDOW):
        bytes_of(loop, step, 5 * SMALL)
        kept.append(bytes_of(loop, step, SMALL))
    assert loop.held_bytes <= len(kept) * roomy(SMALL) + (WINDOW + 4) * SLACK * roomy(5 * SMALL)
    loop.ring.rest(0)
    assert loop.held_bytes <= len(kept) * roomy(SMALL)
    assert all((batch == step).all() for step, batch in enumerate(kept))


def test_the_memory_of_the_last_large_batch_goes_when_it_is_let_go_after_the_iteration(loop: Loop) -> None:
    for step in range(2 * RARE):
        bytes_of(loop, step, SMALL)
    large = bytes_of(loop, 5, LARGE)
    loop.ring.rest(4)
    assert (large == 5).all()
    assert loop.held_bytes >= LARGE
    del large
    assert loop.held_bytes <= 2 * roomy(SMALL)


def test_what_a_dead_worker_has_put_behind_a_slot_goes_back(loop: Loop) -> None:
    batch = bytes_of(loop, 3, SMALL)
    slot = loop.ring.take()
    held = loop.held_bytes
    loop.ring.arena.grown(slot.extent, LARGE)  # and nobody hears of it
    assert loop.held_bytes >= held + LARGE
    loop.ring.empty_behind(slot)
    assert loop.held_bytes == held
    loop.ring.arena.grown(slot.extent, LARGE)
    loop.ring.give_back(slot)
    loop.ring.rest(0)
    assert loop.held_bytes == held
    assert (batch == 3).all()


# ---------------------------------------------------------------- any sizes


SIZES = st.sampled_from([0, 17_000, 30_000, 100_000, 250_000])


@given(steps=st.lists(st.tuples(SIZES, st.integers(0, 40) | st.just(1000)), max_size=250), is_locked=st.booleans())
@settings(max_examples=60)
def test_committed_memory_is_bounded_by_what_is_held_and_what_is_recent(
    steps: list[tuple[int, int]], is_locked: bool
) -> None:
    """Batches of any sizes, each kept for some steps."""
    lock = CountingLock() if is_locked else None
    loop = Loop(lock)
    held: list[tuple[int, int, Any, int]] = []
    for step, (size, span) in enumerate(steps):
        slot, parcel = loop.filled(torch.full((size // 8,), step))
        assert slot.extent.num_bytes >= loop.desk.num_bytes >= (size if size > SMALL_BYTES else 0)
        if loop.desk.num_bytes:
            held.append((step + span, step, unpickle_batch(parcel, loop.ring.lease(slot)), size))
        else:
            loop.ring.give_back(slot)
        assert all((batch == value).all() for end, value, batch, _ in held if end < step)
        held = [entry for entry in held if entry[0] >= step]
        recent = max(size for size, _ in steps[0 if is_locked else max(0, step - 3 * NUM_RECENT) : step + 1])
        # what is page-locked keeps its size for as long as it is held
        num_young = sum(1 for _, begun, *_ in held if is_locked or step - begun <= WINDOW + LOOK_LEASES)
        committed = loop.held_bytes
        in_use = sum(roomy(size) for *_, size in held)
        assert committed <= SLACK * in_use + SLACK * roomy(recent) * (num_young + 3)
        if lock is not None:
            assert sum(lock.locked.values()) == sum(slot.extent.num_bytes for slot in loop.ring._slots.values())
    held.clear()
    for step in range(2 * WINDOW + NUM_RECENT):
        bytes_of(loop, step, SMALL)
    assert loop.held_bytes <= 4 * SLACK * roomy(SMALL)
    loop.close()
    assert loop.held_bytes == 0
    vars(loop).clear()


@given(sizes=st.lists(st.integers(0, 1 << 40), min_size=1, max_size=200))
def test_the_usual_size_is_one_that_was_seen_and_that_nearly_all_fit(sizes: list[int]) -> None:
    recent = RecentSizes()
    for number, size in enumerate(sizes):
        recent.add(size)
        seen = sizes[max(0, number + 1 - NUM_RECENT - RARE) : number + 1]
        assert recent.usual_bytes in seen
        assert recent.largest_bytes == max(sizes[max(0, number + 1 - NUM_RECENT) : number + 1])
        if number + 1 < RARE:
            assert recent.usual_bytes == max(seen)
        if (number + 1) % RARE == 0:
            counted = sizes[max(0, number + 1 - NUM_RECENT) : number + 1]
            assert sum(1 for size in counted if size > recent.usual_bytes) <= len(counted) // RARE
        assert recent.most_bytes >= SLACK * recent.usual_bytes


# ---------------------------------------------------------------- addresses


@given(
    steps=st.lists(st.tuples(st.booleans(), st.integers(1, 60_000), st.integers(0, 99)), max_size=120),
    end=st.sampled_from([1 << 18, END_OF_ADDRESSES]),
)
def test_windows_never_overlap_and_what_comes_back_is_used_again(steps: list[tuple[bool, int, int]], end: int) -> None:
    addresses = Addresses()
    taken: list[Extent] = []
    for is_taking, size, choice in steps:
        if is_taking or not taken:
            window = addresses.take(size, end=end)
            if window is None:
                gaps = [0, *(edge for one in sorted(taken) for edge in (one.offset, one.stop)), end]
                assert all(stop - start < size + 4096 for start, stop in zip(gaps[::2], gaps[1::2]))
                continue
            assert window.num_bytes >= size
            assert window.stop <= end
            assert window.offset % 4096 == 0
            taken.append(window)
        else:
            addresses.give_back(taken.pop(choice % len(taken)))
        assert all(one.stop <= other.offset for one, other in pairwise(sorted(taken)))
    for window in taken:
        addresses.give_back(window)
    assert addresses.take(END_OF_ADDRESSES) == Extent(0, END_OF_ADDRESSES)


def test_more_windows_than_there_are_addresses_can_be_used_one_after_the_other() -> None:
    addresses = Addresses()
    kept = [addresses.take(WINDOW_BYTES) for _ in range(3)]
    for _ in range(END_OF_ADDRESSES // WINDOW_BYTES // 16):
        window = addresses.take(16 * WINDOW_BYTES)
        assert window == Extent(3 * WINDOW_BYTES, 16 * WINDOW_BYTES)
        addresses.give_back(window)
    assert len(set(kept)) == 3


def test_slots_and_boards_use_the_addresses_of_those_before(loop: Loop) -> None:
    kept = bytes_of(loop, 1, SMALL)
    seen = set()
    for step in range(50):
        board = loop.ring.reserve(8)
        batches = [bytes_of(loop, step, SMALL) for _ in range(3)]
        seen |= {slot.window.stop for slot in loop.ring._slots.values()} | {board.stop}
        del batches
        loop.ring.rest(0)
        loop.ring.release(board)
    assert max(seen) <= 6 * WINDOW_BYTES
    assert (kept == 1).all()


# ---------------------------------------------------------------- limited files


@contextmanager
def files_limited_to(num_bytes: int) -> Iterator[None]:
    """Let no file of this process become longer (`ulimit -f`)."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_under_a_limit_on_files_equal_batches_lie_in_the_shared_file(monkeypatch: pytest.MonkeyPatch) -> None:
    with files_limited_to(10 << 30):
        loop = Loop(lock := CountingLock())
        in_flight: deque[Any] = deque(maxlen=16)
        for step in range(40):
            in_flight.append(bytes_of(loop, step, SMALL))
        num_locked = lock.num_locked
        for step in range(4 * WINDOW):
            in_flight.append(bytes_of(loop, step, SMALL))
        assert lock.num_locked == num_locked
        assert not any(slot.is_apart for slot in loop.ring._slots.values())
        assert all(slot.window.stop <= 10 << 30 for slot in loop.ring._slots.values())
        in_flight.clear()
        loop.close()
        vars(loop).clear()


@pytest.mark.parametrize("is_locked", [False, True])
def test_under_a_limit_on_files_batches_may_be_as_big_as_the_limit_and_more_together(is_locked: bool) -> None:
    with files_limited_to(1 << 20):
        lock = CountingLock() if is_locked else None
        loop = Loop(lock)
        kept = [bytes_of(loop, step, 100_000 + 40_000 * (step % 20)) for step in range(40)]
        assert any(slot.is_apart for slot in loop.ring._slots.values())
        assert any(not slot.is_apart for slot in loop.ring._slots.values())
        assert all((batch == step).all() for step, batch in enumerate(kept))
        del kept
        for step in range(4 * WINDOW):
            assert (bytes_of(loop, step, SMALL) == step).all()
        assert not any(slot.is_apart for slot in loop.ring._slots.values())
        loop.close()
        assert lock is None or not lock.locked
        vars(loop).clear()


def test_a_batch_bigger_than_any_file_names_the_limit() -> None:
    with files_limited_to(1 << 20):
        loop = Loop()
        with pytest.raises(OutOfSharedMemory, match=r"limited to 1,048,576 bytes here \(`ulimit -f`\)"):
            bytes_of(loop, 1, 2 << 20)
        assert (bytes_of(loop, 2, SMALL) == 2).all()
        loop.close()
        vars(loop).clear()
