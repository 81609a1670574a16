"""Windows of batches, and what was seen in them: what `"auto"` decides by."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import fmean, stdev

LEAST_BATCHES, LEAST_SECONDS = 16, 0.25
"""A window has so many batches, lasts so long, and has seen every batch that may be in flight twice."""

LEAST_OF_SLOW, SLOW_SECONDS = 6, 4.0
"""Where that would take longer, so many batches are enough after this time."""

STARVING = 0.4
"""Waiting so much of the time needs no long look."""

PAUSE_SECONDS, PAUSE_TIMES, NUM_REMEMBERED = 1.0, 10, 32
"""A step that takes longer than this, and so many times as long as any of the latest, is validation or a checkpoint."""

CLIPPED_TIMES = 3
"""What the longest step of a window counts for at the most, in times of the one after it: where one in eight is long,
all of them are steps; where one in a hundred is, it tells nothing of the others.
"""

NUM_BLOCKS = 4
"""Parts of a window, whose means tell how much its own mean is worth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What was seen in a window; times are seconds for each batch."""

    num_batches: int
    wait: float
    """How long the trainer waited for a batch, whoever was to blame."""
    stall: float
    """How long of that the batch was not made yet."""
    step: float
    """The trainer's own time."""
    making: float
    """Work on a batch, by all hands together."""
    noise: float = 0.0
    """The standard error of the period, as a part of it."""
    cpu_share: float = 0.0
    """How much of the cores that we may use was in use, by whomever."""
    delay_share: float = 0.0
    """The part of the time for which the trainer's thread, ready to run, had no core."""
    most_ahead: int = 1 << 30
    """Batches in flight that there is memory for."""
    can_leave: bool = True
    """Whether the trainer's process, having read data itself, can still have worker processes."""

    @property
    def period(self) -> float:
        """From batch to batch."""
        return self.wait + self.step

    @property
    def stall_share(self) -> float:
        """The part of the time for which nothing was there for the trainer."""
        return self.stall / self.period if self.period else 0.0

    def busy_share(self, num_hands: int) -> float:
        """Return the part of the time for which so many hands were at work."""
        return min(1.0, self.making / (num_hands * self.period)) if num_hands and self.period else 0.0


class BatchWindow:
    """Collects batches until there is a window of them. A batch costs it a microsecond, however long the window is."""

    def __init__(self, *, least_seconds: float = LEAST_SECONDS) -> None:
        self._least_seconds = least_seconds
        self._last: float | None = None
        self._num_since_pause = 0
        self._latest: deque[float] = deque(maxlen=NUM_REMEMBERED)
        self.begin(0)

    def begin(self, num_passed: int, *, num_in_flight: int = 0) -> None:
        """Begin a window, after `num_passed` batches that tell nothing: they were on their way before."""
        self._num_left, self._num_in_flight = num_passed, num_in_flight
        self.num_seen = 0
        self._wait = self._stall = self._step = self._making = 0.0
        self._longest = self._second = 0.0
        self._blocks = _Blocks()

    def pause(self) -> None:
        """An iteration ends or begins: what lies between two batches is no step, and then all have to get going.

        Of an iteration as short as the one before, a part has to tell something all the same.
        """
        self._last = None
        num_told_little = self._num_in_flight + 2
        if self._num_since_pause:
            num_told_little = min(num_told_little, self._num_since_pause // 3)
        self._num_left = max(self._num_left, num_told_little)
        self._num_since_pause = 0

    def add(self, asked: float, handed: float, made: float, making: float) -> bool:
        """Take in a batch; return whether there is a window.

        `made` is when it could have been handed over, `making` the work on it.
        """
        last, self._last = self._last, handed
        self._num_since_pause += 1
        if last is None:
            return False
        step, wait = asked - last, handed - asked
        if step > PAUSE_SECONDS and len(self._latest) > 1 and step > PAUSE_TIMES * max(self._latest):
            self._num_left = max(self._num_left, self._num_in_flight + 1)  # meanwhile, all of it was made
        self._latest.append(step)
        if self._num_left > 0:
            self._num_left -= 1
            return False
        self.num_seen += 1
        self._step += step
        self._wait += wait
        if made > asked:
            self._stall += min(made - asked, wait)
        self._making += making
        if step > self._second:
            self._longest, self._second = (step, self._longest) if step > self._longest else (self._longest, step)
        self._blocks.add(step + wait)
        return self.num_seen >= LEAST_OF_SLOW and self._is_enough(self.num_seen)

    def _is_enough(self, count: int) -> bool:
        twice, seconds = 2 * self._num_in_flight, self._wait + self._step
        if seconds < self._least_seconds:
            return False
        if count >= max(LEAST_BATCHES, twice) or (seconds >= SLOW_SECONDS and count >= twice // 2):
            return True
        return self._wait > STARVING * seconds and count >= twice

    def observation(
        self,
        *,
        cpu_share: float = 0.0,
        delay_share: float = 0.0,
        most_ahead: int = 1 << 30,
        can_leave: bool = True,
    ) -> Observation:
        """Return what was seen, with what only others know."""
        count = self.num_seen
        odd = max(0.0, self._longest - CLIPPED_TIMES * self._second)
        return Observation(
            num_batches=count,
            wait=self._wait / count,
            stall=self._stall / count,
            step=(self._step - odd) / count,
            making=self._making / count,
            noise=self._blocks.noise(),
            cpu_share=cpu_share,
            delay_share=delay_share,
            most_ahead=most_ahead,
            can_leave=can_leave,
        )


class _Blocks:
    """Sums of numbers that follow each other, so many in each that there are never many sums."""

    MOST = 128

    def __init__(self) -> None:
        self._sums: list[float] = []
        self._size, self._open, self._num_open = 1, 0.0, 0

    def add(self, value: float) -> None:
        self._open += value
        self._num_open += 1
        if self._num_open < self._size:
            return
        sums = self._sums
        sums.append(self._open)
        self._open, self._num_open = 0.0, 0
        if len(sums) == self.MOST:
            self._sums = [one + other for one, other in zip(sums[::2], sums[1::2])]
            self._size *= 2

    def noise(self) -> float:
        """Return the standard error of the mean, as a part of it, from the means of parts of the window: batches near
        each other are not independent, as where workers bring theirs all at once.
        """
        size = len(self._sums) // NUM_BLOCKS
        means = [fmean(self._sums[at : at + size]) for at in range(0, size * NUM_BLOCKS, size)] if size else []
        whole = fmean(means) if means else 0.0
        return float(stdev(means) / NUM_BLOCKS**0.5 / whole) if whole > 0 else 0.0
