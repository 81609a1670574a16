"""Copies are counted, and some are timed on the device."""

from __future__ import annotations

from stoker.deliver.copy_counter import TIMED_EVERY, CopyCounter


def test_one_of_several_is_timed_and_never_the_first_for_which_memory_has_to_be_found() -> None:
    counter = CopyCounter()
    timed = []
    for number in range(3 * TIMED_EVERY):
        if counter.is_to_be_timed:
            timed.append(number)
            counter.add_timed(0.004)
        counter.add(0.001)
    assert timed == [1, 1 + TIMED_EVERY, 1 + 2 * TIMED_EVERY]
    record = counter.record()
    assert record is not None
    assert (record.num, record.device_seconds) == (3 * TIMED_EVERY, 0.004)
    counter.reset()
    assert counter.record() is None
