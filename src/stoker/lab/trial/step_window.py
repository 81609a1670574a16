"""The steps of a trainer, timed: where batches come from, which clock runs, and what is left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from stoker.errors import ArgumentError
from stoker.foundation import machine
from stoker.lab.diagnose.effort import Effort, Gauge
from stoker.lab.trial.drive import arguments_of, num_ahead_of
from stoker.lab.trial.ready_batches import fresh

Step = Callable[[Any], Any]

NUM_WARM = 3
"""Steps before the clock starts, where nothing is made ahead; also what a step does only at first is then done."""


class Resident:
    """The same few batches, on the device, again and again."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches, self._number = list(batches), 0
        self.num_warm, self.iterator = NUM_WARM, None

    def take(self) -> Any:
        """Return the next."""
        self._number += 1
        return fresh(self._batches[self._number % len(self._batches)])


class Iterated:
    """A loader, iterated over as a trainer does, epoch after epoch."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.iterator: Iterator[Any] | None = None
        self._num_taken = 0

    @property
    def num_warm(self) -> int:
        """Steps before the clock starts: as many as may have been made ahead, with the arguments as they are now."""
        return NUM_WARM + num_ahead_of(arguments_of(self._loader))

    def take(self) -> Any:
        """Return the next batch of the epoch; the first one of the next after its end was told."""
        if self.iterator is None:
            self.iterator, self._num_taken = iter(self._loader), 0
        try:
            batch = next(self.iterator)
        except StopIteration:
            self.iterator = None
            if not self._num_taken:
                raise ArgumentError(
                    "the loader has no more batches: it can be iterated over only once",
                    hint="give one that begins anew with every epoch, or with more batches than are measured",
                ) from None
            raise
        self._num_taken += 1
        return batch

    def close(self) -> None:
        """End the iteration, and with it workers as far as they can be told to."""
        close = getattr(self.iterator, "close", None)
        self.iterator = None
        if callable(close):
            close()


class Window:
    """The steps of one round of one way, timed. Starts of epochs are left out, with as many steps as are made ahead."""

    def __init__(self, source: Resident | Iterated, step: Step, *, clock: Ticks, gauge: Gauge | None = None) -> None:
        self._source, self._step, self._clock, self._gauge = source, step, clock, gauge
        self._own = machine.Clock()
        self.seconds = self.wait_seconds = 0.0
        self.num_steps = 0
        self.periods: list[float] = []
        self.effort = Effort()
        """Of whoever makes batches, while the clock ran."""
        self.waiting = Effort()
        """Of the trainer's own thread, while it waited."""
        self.is_short = False
        """Whether epochs are too short to leave out what was made ahead at their starts."""

    def run(self, num_steps: int) -> Window:
        """Time so many steps."""
        num_warm = self._source.num_warm
        try:
            while self.num_steps < num_steps:
                before = self.num_steps
                if self._warmed(num_warm):
                    self._time(num_steps - self.num_steps)
                if self.num_steps == before:  # the epoch was over before the clock ran: in the next it starts sooner
                    num_warm, self.is_short = num_warm // 2, True
        finally:
            self._own.close()
        return self

    def _warmed(self, num_warm: int) -> bool:
        """Step without the clock; return False if the epoch ends meanwhile."""
        try:
            for _ in range(num_warm):
                self._step(self._source.take())
        except StopIteration:
            return False
        return True

    def _time(self, num_steps: int) -> None:
        """Step by the clock until there are enough, or the epoch is over."""
        clock, take, step, own = self._clock, self._source.take, self._step, self._own
        clock.synchronize()
        began = time.perf_counter()
        before = self._effort(began)
        clock.start()
        num_done, is_over = 0, False
        for _ in range(num_steps):
            asked, used = time.perf_counter(), own.times()
            try:
                batch = take()
            except StopIteration:
                is_over = True
                break
            handed, after = time.perf_counter(), own.times()
            step(batch)
            clock.tick()
            self.wait_seconds += handed - asked
            self.waiting += Effort(handed - asked, after[0] - used[0], after[1] - used[1])
            num_done += 1
        clock.synchronize()
        ended = time.perf_counter()
        if num_done:
            periods = clock.periods()
            self.periods += periods
            # The end of an epoch takes its time, too, which is no step's.
            self.seconds += sum(periods) if is_over else ended - began
            self.num_steps += num_done
            self.effort += self._effort(ended) - before

    def _effort(self, now: float) -> Effort:
        return Effort() if self._gauge is None else self._gauge.read(self._source.iterator, now)


class Ticks:
    """The time from step to step, by the trainer's clock."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def synchronize(self) -> None:
        """Nothing runs on behind our back."""

    def start(self) -> None:
        """Begin."""
        self._times = [time.perf_counter()]

    def tick(self) -> None:
        """A step is done."""
        self._times.append(time.perf_counter())

    def periods(self) -> list[float]:
        """Return how long each step took."""
        return [after - before for before, after in zip(self._times, self._times[1:])]


class WaitingTicks(Ticks):
    """The same where a device computes on that has no clock for us: each step is waited for."""

    def synchronize(self) -> None:
        """Wait for all that was begun."""
        torch.accelerator.synchronize()

    def tick(self) -> None:
        """A step is done, when it is."""
        self.synchronize()
        super().tick()


class CudaTicks(Ticks):
    """The same by the device's clock: steps are only begun when they return, and are not waited for one by one."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._events: list[torch.cuda.Event] = []

    def synchronize(self) -> None:
        """Wait for all that was begun."""
        torch.cuda.synchronize(self._device)

    def start(self) -> None:
        """Begin."""
        self._events = [self._recorded()]

    def tick(self) -> None:
        """A step has been begun; the device notes when it is done."""
        self._events.append(self._recorded())

    def periods(self) -> list[float]:
        """Return how long each step took, from the end of the one before."""
        return [before.elapsed_time(after) / 1e3 for before, after in zip(self._events, self._events[1:])]

    def _recorded(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event
