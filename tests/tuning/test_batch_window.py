"""Windows of batches: when there is one, what is in it, and what is not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stoker.tuning.batch_window import LEAST_BATCHES, LEAST_OF_SLOW, BatchWindow


class Clock:
    """Batches one after the other, in virtual time."""

    def __init__(self, meter: BatchWindow) -> None:
        self.meter = meter
        self.now = 0.0

    def batch(self, *, step: float = 0.02, wait: float = 0.001, stall: float = 0.0, making: float = 0.01) -> bool:
        """Train for a step, wait for a batch; return whether there is a window."""
        asked = self.now + step
        self.now = asked + wait
        return self.meter.add(asked, self.now, asked + stall if stall else asked - 1, making)

    def until_full(self, **batch: float) -> int:
        """Return how many batches it takes until there is a window."""
        return next(number for number in self._numbers() if self.batch(**batch))

    @staticmethod
    def _numbers() -> Iterator[int]:
        return iter(range(1, 100_000))


def begun(num_passed: int = 0, *, num_in_flight: int = 2) -> Clock:
    meter = BatchWindow()
    meter.begin(num_passed, num_in_flight=num_in_flight)
    clock = Clock(meter)
    clock.batch()  # from here on there are steps
    return clock


def test_a_window_says_waiting_step_and_work_of_a_batch() -> None:
    clock = begun()
    assert clock.until_full(step=0.03, wait=0.01, stall=0.008, making=0.05) == LEAST_BATCHES
    seen = clock.meter.observation(cpu_share=0.5, delay_share=0.1, most_ahead=7, can_have_workers=False)
    assert (seen.num_batches, seen.cpu_share, seen.delay_share) == (LEAST_BATCHES, 0.5, 0.1)
    assert (seen.most_ahead, seen.can_have_workers) == (7, False)
    shown = [seen.wait, seen.stall, seen.step, seen.making, seen.period]
    assert shown == pytest.approx([0.01, 0.008, 0.03, 0.05, 0.04])
    assert seen.stall_share == pytest.approx(0.2)
    assert seen.busy_share(2) == pytest.approx(0.625)
    assert seen.busy_share(1) == 1.0
    assert seen.noise == pytest.approx(0.0)


def test_batches_that_were_on_their_way_are_passed_over() -> None:
    clock = begun(10)
    assert clock.until_full() == LEAST_BATCHES + 10


def test_quick_batches_fill_a_window_by_time_and_slow_ones_by_number() -> None:
    assert begun().until_full(step=0.001, wait=0.0) == 250
    assert begun().until_full(step=2.0, wait=0.0) == LEAST_OF_SLOW


def test_every_batch_in_flight_is_seen_twice() -> None:
    assert begun(num_in_flight=20).until_full() == 40


def test_a_trainer_that_waits_for_the_most_part_is_helped_sooner() -> None:
    assert begun().until_full(step=0.02, wait=0.04) == LEAST_OF_SLOW


def test_batches_that_come_together_count_as_one_after_the_other() -> None:
    """Four workers bring theirs at once: a quarter of the waiting is each one's."""
    clock = begun()
    for number in range(16):
        wait = 0.04 if number % 4 == 0 else 0.0
        clock.batch(step=0.005, wait=wait, stall=wait)
    seen = clock.meter.observation()
    assert seen.wait == pytest.approx(0.01)
    assert seen.noise == pytest.approx(0.0)


def test_one_odd_step_does_not_count_and_every_eighth_does() -> None:
    clock = begun()
    for number in range(16):
        clock.batch(step=0.9 if number == 7 else 0.01, wait=0.0)
    assert clock.meter.observation().step == pytest.approx((15 * 0.01 + 0.03) / 16)
    clock = begun()
    for number in range(16):
        clock.batch(step=0.9 if number % 8 == 7 else 0.01, wait=0.0)
    assert clock.meter.observation().step == pytest.approx((14 * 0.01 + 2 * 0.9) / 16)


def test_a_pause_for_validation_is_not_a_step_and_neither_are_the_batches_that_it_made_ready() -> None:
    clock = begun(num_in_flight=4)
    for _ in range(8):
        clock.batch()
    clock.batch(step=30.0)
    for _ in range(4):
        clock.batch(step=0.5, wait=0.0)  # served from what was made meanwhile
    assert clock.meter.num_seen == 8
    clock.batch()
    assert clock.meter.num_seen == 9
    assert clock.meter.observation().step == pytest.approx(0.02)


def test_long_steps_that_come_again_and_again_are_steps() -> None:
    clock = begun(num_in_flight=2)
    for number in range(40):
        clock.batch(step=2.0 if number % 8 == 7 else 0.02)
    assert clock.meter.num_seen > 24


def test_what_lies_between_two_iterations_is_not_counted() -> None:
    clock = begun(num_in_flight=3)
    for _ in range(9):
        clock.batch()
    clock.meter.pause()
    clock.now += 100
    for number in range(6):
        clock.batch(wait=0.5 if number == 0 else 0.001)
    assert clock.meter.num_seen == 9 + 6 - 1 - 3  # neither the first batch nor those that got going with it
    assert clock.meter.observation().period == pytest.approx(0.021)


def test_short_iterations_make_up_a_window_together() -> None:
    clock = begun(num_in_flight=8)
    for _ in range(20):
        clock.meter.pause()
        if any(clock.batch() for _ in range(6)):
            return
    pytest.fail("nothing is ever seen of iterations of six batches")
